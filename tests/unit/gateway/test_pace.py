"""Writers are woken at once while a round of writes is short, and together after a rest where it is long."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace_gateway.pace import MOST_REST_S, REST, Pace


class FakeLoop:
    """Calls soon in turn, and keeps what is to be called later; `now` is its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_soon(self, call: Callable[..., None], *args: Any) -> None:
        self.soon.append((call, args))

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.later.append((delay_s, call))

    def run(self) -> None:
        while self.soon:
            call, args = self.soon.popleft()
            call(*args)

    def rest(self) -> float:
        """Until the one timer that is set; how long that was."""
        ((delay_s, call),) = self.later
        self.later.clear()
        self.now += delay_s
        call()
        self.run()
        return delay_s


class Writer:
    """A future whose waiter takes `write_s` when it is woken."""

    def __init__(self, loop: FakeLoop, write_s: float) -> None:
        self._loop, self._write_s = loop, write_s
        self.num_woken = 0

    def done(self) -> bool:
        return self.num_woken > 0

    def set_result(self, _: None) -> None:
        self.num_woken += 1
        self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._loop.now += self._write_s


@pytest.fixture
def loop() -> Iterator[FakeLoop]:
    loop = FakeLoop()
    yield loop
    assert not loop.soon, "calls are left"


def pace_of(loop: Any) -> Pace:
    return Pace(loop, lambda: float(loop.now))


def wake(pace: Pace, loop: FakeLoop, num: int, write_s: float) -> list[Writer]:
    writers = [Writer(loop, write_s) for _ in range(num)]
    for writer in writers:
        future: Any = writer
        pace.wake(future)
    return writers


def test_short_rounds_follow_one_another_without_a_rest(loop: FakeLoop) -> None:
    pace = pace_of(loop)
    for _ in range(5):
        writers = wake(pace, loop, num=4, write_s=0.0001)
        loop.run()
        assert all(writer.num_woken == 1 for writer in writers)
    assert not loop.later


def test_after_a_long_round_those_who_come_wait_and_are_woken_together(loop: FakeLoop) -> None:
    pace = pace_of(loop)
    wake(pace, loop, num=100, write_s=0.00002)
    loop.run()
    early, late = wake(pace, loop, num=1, write_s=0.0), wake(pace, loop, num=2, write_s=0.0)
    loop.run()
    assert not any(writer.num_woken for writer in (*early, *late))
    assert loop.rest() == pytest.approx(REST * 100 * 0.00002)
    assert all(writer.num_woken == 1 for writer in (*early, *late))
    (writer,) = wake(pace, loop, num=1, write_s=0.0)
    loop.run()
    assert writer.num_woken == 1, "the round after it was short"


def test_no_rest_is_longer_than_a_reader_would_notice(loop: FakeLoop) -> None:
    pace = pace_of(loop)
    wake(pace, loop, num=1, write_s=1.0)
    loop.run()
    wake(pace, loop, num=1, write_s=0.0)
    assert loop.rest() == pytest.approx(MOST_REST_S)


async def test_a_writer_that_was_woken_otherwise_meanwhile_is_left_alone() -> None:
    running = asyncio.get_running_loop()
    pace, writer = Pace(running), running.create_future()
    pace.wake(writer)
    writer.set_result(None)
    other = running.create_future()
    pace.wake(other)
    await other
