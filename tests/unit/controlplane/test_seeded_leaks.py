"""The audit over real books of a gateway, a router and a worker, each asked over gRPC: ten leaks, and who says nothing.

The journal and the count of reservations are plain lists here: that policy keeps them is tested where policy is.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, policy_pb2, policy_pb2_grpc, response_pb2
from headrace_controlplane.audit import Equation
from headrace_controlplane.auditor import Auditor, Sources
from headrace_controlplane.fleet.pools import Pool
from headrace_controlplane.lifetimes import Lifetimes
from headrace_controlplane.peers import Peers
from headrace_controlplane.questions import Questions
from headrace_controlplane.registry import Record, Registry
from headrace_controlplane.roll_call import RollCall
from headrace_controlplane.subscribers import MISSED_S, Subscriber, Subscribers
from headrace_kit.errors import HeadraceError
from headrace_router.books import BookkeepingServicer as RouterBooks
from headrace_router.in_flight import InFlight, Sent
from tests.unit.gateway import test_books as gateway_books
from tests.unit.worker import test_books as worker_books

TOKENS_OF_A_RUN = 4  # of worker_books.Bench.run


class Tells(fleet_pb2_grpc.BookkeepingServicer):
    def __init__(self, report: Callable[[], fleet_pb2.GetBooksResponse]) -> None:
        self._report = report

    async def GetBooks(self, request: Any, context: Any) -> fleet_pb2.GetBooksResponse:
        return self._report()


class Mute(fleet_pb2_grpc.BookkeepingServicer):
    """Is there, and says nothing."""

    async def GetBooks(self, request: Any, context: Any) -> fleet_pb2.GetBooksResponse:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "mute")
        raise AssertionError("abort raises")


class Journal(policy_pb2_grpc.PolicyServicer):
    def __init__(self) -> None:
        self.rows: list[policy_pb2.UsageRow] = []

    async def GetUsage(self, request: Any, context: Any) -> AsyncIterator[policy_pb2.UsageRow]:
        for row in self.rows:
            if row.settled_at_ms >= request.from_ms:
                yield row

    def settle(self, response_id: str, replica: response_pb2.ReplicaRef, num_tokens: int) -> None:
        row = policy_pb2.UsageRow(settled_at_ms=1_000_000, row_id=f"1000000-{len(self.rows)}")
        row.settlement.reservation.response_id = response_id
        row.settlement.attempts.add(replica=replica, num_generated_tokens=num_tokens)
        self.rows.append(row)


async def no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


class Fleet:
    """One of each service, with one response that was settled and one that runs."""

    def __init__(self, folder: Path) -> None:
        self.gateway, self.worker = gateway_books.Bench(folder), worker_books.Bench()
        self.journal, self.flight, self.reservations = Journal(), InFlight(), ["running"]
        self.subscribers, self.peers = Subscribers(), Peers("token", None)
        self.lifetimes, self.servers = Lifetimes(folder / "lifetimes.db"), list[grpc.aio.Server]()
        self.subscriptions: dict[str, Subscriber] = {}
        self.registry = Registry(lease_s=60.0, now=0.0)

    async def start(self) -> None:
        ref = self.worker.replica.ref
        self.worker.run(1)
        self.worker.ack(1)
        self.journal.settle("r1", ref, TOKENS_OF_A_RUN)
        await self.gateway.settle(self.gateway.begin("r1"))
        self.gateway.books.ended("completed")
        self.gateway.begin("running")
        self.gateway.renewals.hold(policy_pb2.Reservation(response_id="running"))
        self.flight.add(Sent("d1", ref.id, ref.epoch, 0.0))
        for service, endpoint in (
            ("gateway", await self.serve(Tells(self.gateway.books.report))),
            ("router", await self.serve(RouterBooks("r", self.flight))),
            ("policy", await self.serve(Tells(self._policy), self.journal)),
        ):
            self.subscriptions[service] = self.subscribers.add(service, f"{service}-1", endpoint)
        endpoint = await self.serve(Tells(self._worker))
        self.registry.heartbeat(Record(id=ref.id, epoch=ref.epoch, endpoint=endpoint, state="ready"), 0.0)

    def auditor(self) -> Auditor:
        roll_call, questions = RollCall(self.subscribers), Questions(self.subscribers, self.peers)
        sources = Sources(roll_call, self.peers, questions, self.registry, self.lifetimes)
        return Auditor(sources, sleep=no_sleep)

    async def audit(self) -> list[Equation]:
        return await self.auditor().audit()

    async def broken(self) -> list[str]:
        return [one.equation.partition(" =")[0] for one in await self.audit() if not one.balanced]

    async def close(self) -> None:
        await self.peers.close()
        for server in self.servers:
            await server.stop(0)
        self.lifetimes.close()

    async def serve(self, books: Any, journal: Journal | None = None) -> str:
        """Returns where."""
        server = grpc.aio.server()
        fleet_pb2_grpc.add_BookkeepingServicer_to_server(books, server)
        if journal is not None:
            policy_pb2_grpc.add_PolicyServicer_to_server(journal, server)
        endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        self.servers.append(server)
        return endpoint

    def _worker(self) -> fleet_pb2.GetBooksResponse:
        bench = self.worker
        return bench.dispatch.books.report(bench.replica.ref, bench.replica.load, bench.dispatch.attempts)

    def _policy(self) -> fleet_pb2.GetBooksResponse:
        return fleet_pb2.GetBooksResponse(component="policy p", num_reservations=len(self.reservations))


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path)
    await made.start()
    yield made
    await made.close()


def _lose_an_attempt(fleet: Fleet) -> None:
    fleet.worker.submit(1)
    worker_books._lose_an_attempt(fleet.worker)


LEAKS: dict[str, tuple[Callable[[Fleet], object], str]] = {
    "a gateway forgets a response": (lambda fleet: gateway_books._forget_a_session(fleet.gateway), "begun"),
    "a response ends twice": (lambda fleet: gateway_books._end_twice(fleet.gateway), "created"),
    "a settlement is confirmed that nobody gave": (
        lambda fleet: gateway_books._confirm_what_was_not_given(fleet.gateway),
        "settlements",
    ),
    "a worker loses an attempt": (_lose_an_attempt, "submitted"),
    "a worker miscounts an answer": (lambda fleet: worker_books._miscount(fleet.worker), "generated"),
    "a page is lost": (lambda fleet: worker_books._lose_a_page(fleet.worker), "pages"),
    "a page is held that nobody owns": (
        lambda fleet: worker_books._hold_a_page(fleet.worker),
        "imbalances that the engine found when idle",
    ),
    "a settlement never reaches the journal": (lambda fleet: fleet.journal.rows.clear(), "generated and handed over"),
    "a response is charged twice": (
        lambda fleet: fleet.journal.settle("r1-again", fleet.worker.replica.ref, TOKENS_OF_A_RUN),
        "generated and handed over",
    ),
    "a reservation is never given back": (
        lambda fleet: fleet.reservations.append("leaked"),
        "reservations that gateways hold",
    ),
    "a gateway holds what policy did not give": (
        lambda fleet: fleet.reservations.clear(),
        "reservations that gateways hold",
    ),
    "a router waits for an outcome that nobody reports": (
        lambda fleet: fleet.flight.add(Sent("d2", "replica", "epoch", 0.0)),
        "attempts of gateways",
    ),
    "a router loses count of its decisions": (
        lambda fleet: setattr(fleet.flight, "num_told", 1),
        "decisions",
    ),
}


async def test_a_fleet_without_a_leak_balances(fleet: Fleet) -> None:
    found = await fleet.audit()
    assert [one for one in found if not one.balanced] == []
    told = {one.component.partition(" ")[0] for one in found}
    assert told == {"gateway", "router", "worker", "fleet"} and len(found) == 13
    assert [one.right for one in found if "journal" in one.equation] == [TOKENS_OF_A_RUN]


@pytest.mark.parametrize("leak", LEAKS)
async def test_each_seeded_leak_is_caught_by_the_equation_that_is_meant_for_it(fleet: Fleet, leak: str) -> None:
    seed, equation = LEAKS[leak]
    seed(fleet)
    assert await fleet.broken() == [equation]


@pytest.mark.parametrize("service", ["gateway", "router"])
async def test_one_that_broke_off_and_is_still_there_makes_the_audit_incomplete(fleet: Fleet, service: str) -> None:
    """A stopped process may hold anything, and so may one that the network cut off."""
    second = fleet.subscribers.add(service, "second", await fleet.serve(Mute()))
    fleet.subscribers.remove(second)
    found = await fleet.audit()
    broken = [one for one in found if not one.balanced]
    assert [(one.component, one.is_missing) for one in broken] == [(f"{service} {second.endpoint}", True)]
    assert "fleet" not in {one.component for one in found}, "sums over a part would blame those that answer"


async def test_a_policy_that_broke_off_and_says_nothing_leaves_no_bill_to_compare_with(fleet: Fleet) -> None:
    fleet.subscribers.remove(fleet.subscribers.add("policy", "second", await fleet.serve(Mute())))
    with pytest.raises(HeadraceError) as refused:
        await fleet.audit()
    assert refused.value.reason == "policy_unavailable"


async def test_one_that_broke_off_and_answers_is_asked_on(fleet: Fleet) -> None:
    fleet.subscribers.remove(fleet.subscriptions["gateway"])
    assert await fleet.broken() == []
    gateway_books._end_twice(fleet.gateway)
    assert await fleet.broken() == ["created"]


async def test_one_that_said_goodbye_or_is_gone_owes_no_books(fleet: Fleet) -> None:
    polite = fleet.subscribers.add("gateway", "polite", await fleet.serve(Mute()))
    polite.leaving = True
    fleet.subscribers.remove(polite)
    dead = fleet.subscribers.add("router", "dead", await fleet.serve(Mute()))
    await fleet.servers[-1].stop(0)
    fleet.subscribers.remove(dead)
    assert await fleet.broken() == []
    assert fleet.subscribers.missed("router") == []


@pytest.mark.parametrize("service", ["gateway", "router"])
async def test_a_fleet_of_which_nobody_ever_subscribed_is_no_balanced_one(fleet: Fleet, service: str) -> None:
    known = fleet.subscriptions[service]
    known.leaving = True
    fleet.subscribers.remove(known)
    assert await fleet.broken() == ["tells its books"]


def test_one_is_missed_for_a_while_until_it_is_back() -> None:
    now = 0.0
    subscribers = Subscribers(lambda: now)
    subscribers.remove(subscribers.add("gateway", "g", "host:1"))
    assert (subscribers.missed("gateway"), subscribers.missed("router")) == (["host:1"], [])
    again = subscribers.add("gateway", "g", "host:1")
    assert subscribers.missed("gateway") == []
    subscribers.remove(again)
    now = MISSED_S + 1
    assert subscribers.missed("gateway") == []


async def test_a_worker_that_was_away_for_longer_than_its_lease_is_no_leak_when_it_is_back(fleet: Fleet) -> None:
    (record,), auditor = fleet.registry.records(), fleet.auditor()
    for seen_ms in (500_000, 600_000):
        fleet.lifetimes.observe([record], {"": Pool(model="m")}, seen_ms)
    for is_back in (False, True):
        assert all(one.balanced for one in await auditor.audit())
        if is_back:
            fleet.registry.heartbeat(record, 0.0)
        else:
            fleet.registry.remove(record.id)
    assert all(one.balanced for one in await auditor.audit())
