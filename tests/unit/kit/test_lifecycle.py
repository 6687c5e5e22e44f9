import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_kit import telemetry
from headrace_kit.lifecycle import Supervisor, backoff_s, cancel_and_wait


class Clock:
    """A clock that only sleeping and ``passes`` move."""

    def __init__(self) -> None:
        self.now, self.naps = 0.0, list[float]()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, duration_s: float) -> None:
        self.naps.append(duration_s)
        self.now += duration_s


def supervisor(clock: Clock) -> tuple[Supervisor, list[str]]:
    failures: list[str] = []
    return Supervisor(failures.append, sleep=clock.sleep, clock=clock), failures


def crashing(times: int, after: Callable[[], None] = lambda: None) -> Callable[[], Awaitable[None]]:
    left = iter(range(times))

    async def work() -> None:
        if next(left, None) is not None:
            after()
            raise RuntimeError("broke")

    return work


async def test_a_crash_is_counted_and_restarted_with_growing_pauses() -> None:
    clock = Clock()
    tasks, failures = supervisor(clock)
    await tasks.start("restarting", crashing(8))
    assert telemetry.REGISTRY.get_sample_value("task_crashes_total", {"task": "restarting"}) == 8
    assert failures == [] and len(clock.naps) == 8
    assert clock.naps[0] <= 0.2 and 2.5 <= clock.naps[-1] <= 5.0


async def test_a_task_that_ran_well_starts_its_pauses_anew() -> None:
    clock = Clock()
    tasks, _ = supervisor(clock)

    def an_hour_passes() -> None:
        clock.now += 3600

    await tasks.start("healthy", crashing(8, an_hour_passes))
    assert all(nap <= 0.2 for nap in clock.naps)


async def test_a_vital_task_fails_the_process_at_its_first_crash() -> None:
    clock = Clock()
    tasks, failures = supervisor(clock)
    await tasks.start("vital", crashing(2), on_crash="fail")
    assert failures == ["background task vital crashed"] and clock.naps == []


async def test_stop_waits_until_every_task_has_ended() -> None:
    tasks, _ = supervisor(Clock())
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    tasks.start("a", work)
    tasks.start("b", work)
    await asyncio.sleep(0)
    await tasks.stop()
    assert ended == [True, True]


async def test_a_name_runs_once_at_a_time() -> None:
    tasks, _ = supervisor(Clock())

    async def work() -> None:
        await asyncio.Event().wait()

    tasks.start("once", work)
    with pytest.raises(AssertionError, match="already running"):
        tasks.start("once", work)
    await tasks.stop()


async def test_cancel_and_wait_swallows_what_the_tasks_end_with() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("while closing") from None

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await cancel_and_wait(task)
    assert task.done()


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_backoff_stays_between_half_and_all_of_its_step(attempt: int, spread: float) -> None:
    step = min(5.0, 0.1 * 2.0 ** min(attempt, 60))
    assert step / 2 <= backoff_s(attempt, spread=spread) <= step
