"""The gateway's books: whatever becomes of a response is counted once, and what is forgotten shows."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.v1 import policy_pb2
from headrace_gateway.books import Books
from headrace_gateway.outbox import Outbox
from headrace_gateway.renewals import Renewals
from headrace_gateway.sessions import RunningResponse, Sessions
from headrace_gateway.settler import Settler
from headrace_kit.errors import HeadraceError


class Policy:
    """Answers, is away, or refuses for good."""

    def __init__(self) -> None:
        self.reason = ""

    async def settle(self, request: policy_pb2.SettleRequest) -> None:
        if self.reason:
            raise HeadraceError(self.reason, "as told")


class Running:
    def __init__(self, response_id: str, *, created: bool = True) -> None:
        self.response_id, self.created, self.attempt = response_id, created, 1


class Bench:
    def __init__(self, folder: Path) -> None:
        self.policy, self.outbox, self.sessions = Policy(), Outbox(folder / "outbox.sqlite"), Sessions()
        self.settler = Settler(cast("Any", self.policy), self.outbox)
        self.renewals = Renewals(cast("Any", self.policy), "g")
        self.books = Books("g", self.sessions, self.settler, self.renewals)

    def begin(self, name: str, *, created: bool = True) -> RunningResponse:
        session = cast("RunningResponse", Running(name, created=created))
        self.sessions.started(session)
        if created:
            self.books.created()
        return session

    async def settle(self, session: RunningResponse) -> None:
        self.sessions.ended(session)
        self.books.settled()
        request = policy_pb2.SettleRequest()
        request.reservation.response_id = session.response_id
        await self.settler.settle(request)

    def broken(self) -> list[str]:
        return [row.equation.partition(" =")[0] for row in self.books.report().rows if not row.balanced]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_every_ending_balances(bench: Bench) -> None:
    running, done, failed = (bench.begin(name) for name in ("r1", "r2", "r3"))
    declined = bench.begin("r4", created=False)
    bench.sessions.ended(declined)
    bench.books.declined()
    await bench.settle(done)
    bench.books.ended("completed")
    bench.policy.reason = "policy_unavailable"
    await bench.settle(failed)
    bench.books.ended("failed")
    report = bench.books.report()
    assert (bench.broken(), report.num_waiting, report.num_attempts) == ([], 1, 1)
    bench.policy.reason = ""
    emptying = asyncio.create_task(bench.settler.run())
    async with asyncio.timeout(5):
        while bench.settler.num_waiting:  # noqa: ASYNC110  nobody tells when it is empty
            await asyncio.sleep(0.01)
    emptying.cancel()
    await bench.settle(running)
    bench.books.ended("cancelled")
    assert (bench.broken(), bench.books.report().num_waiting) == ([], 0)


async def test_a_settlement_of_an_earlier_process_is_counted(bench: Bench, tmp_path: Path) -> None:
    bench.policy.reason = "policy_unavailable"
    await bench.settle(bench.begin("r1"))
    bench.books.ended("completed")
    later = Settler(cast("Any", bench.policy), Outbox(tmp_path / "outbox.sqlite"))
    assert (later.num_given, later.num_waiting, later.num_in_hand) == (1, 1, 1)


def _forget_a_session(bench: Bench) -> None:
    bench.sessions.ended(bench.begin("lost", created=False))


def _end_twice(bench: Bench) -> None:
    bench.books.ended("completed")


def _lose_from_disk(bench: Bench) -> None:
    bench.outbox.remove("r1")


def _confirm_what_was_not_given(bench: Bench) -> None:
    bench.settler.num_confirmed += 1


@pytest.mark.parametrize(
    ("leak", "equation"),
    [
        (_forget_a_session, "begun"),
        (_end_twice, "created"),
        (_lose_from_disk, "waiting settlements"),
        (_confirm_what_was_not_given, "settlements"),
    ],
)
async def test_a_leak_shows_in_its_equation(bench: Bench, leak: Callable[[Bench], None], equation: str) -> None:
    bench.policy.reason = "policy_unavailable"
    await bench.settle(bench.begin("r1"))
    bench.books.ended("failed")
    leak(bench)
    assert bench.broken() == [equation]
