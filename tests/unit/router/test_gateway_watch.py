"""What a dead gateway left is given up once; what may still run, of whomever it is, never."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from headrace.v1 import fleet_pb2, worker_pb2
from headrace_router.books import BookkeepingServicer
from headrace_router.gateway_watch import GatewayWatch
from headrace_router.gateways import ORPHAN_S
from headrace_router.in_flight import FORGOTTEN_S
from headrace_router.replicas import STALE_S
from tests.meters import Moved
from tests.unit.router.fakes import Fleet
from tests.unit.router.test_servicer import Router


class Plane:
    """The control plane as a channel: says who is gone, or nothing."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.away = False
        self.asked: list[tuple[str, list[str]]] = []

    def unary_unary(self, path: str, **options: Any) -> Any:
        return self._find_gone if path.endswith("/FindGone") else None

    def stream_stream(self, path: str, **options: Any) -> None:
        return None

    stream_unary = unary_stream = stream_stream

    async def _find_gone(self, request: fleet_pb2.FindGoneRequest, timeout: float) -> fleet_pb2.FindGoneResponse:
        if self.away:
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
        self.asked.append((request.service, sorted(request.instances)))
        return fleet_pb2.FindGoneResponse(gone=self.gone & set(request.instances))


class Bench:
    """A router with one replica that says each second who is attached, on a virtual clock."""

    def __init__(self, plane: Plane | None = None) -> None:
        self.now, self.plane = 0.0, plane or Plane()
        self.fleet = Fleet(lambda: self.now)
        (self.replica,) = self.fleet.ready("w-1")
        self.router = Router(self.fleet)
        self.attached: list[str] = []
        self.is_silent = False
        self.watch = GatewayWatch(
            self.fleet.in_flight,
            self.fleet.table,
            self.plane,  # type: ignore[arg-type]
            self.router.servicer.settle,
            lambda: self.now,
        )

    async def route(self, gateway_id: str) -> str:
        return (await self.router.route(gateway_id=gateway_id)).decision_id

    async def wait(self, seconds: float) -> None:
        """The replica speaks, and the router looks, every second."""
        for _ in range(round(seconds)):
            self.now += 1.0
            if not self.is_silent:
                self.fleet.table.set_load(self.replica, worker_pb2.Load(gateways=self.attached))
            await self.watch.look()

    @property
    def num_open(self) -> int:
        return self.fleet.in_flight.num_open("w-1")

    async def is_balanced(self) -> bool:
        books = await BookkeepingServicer("r", self.fleet.in_flight).GetBooks(fleet_pb2.GetBooksRequest(), None)
        return len(books.rows) == 2 and all(row.balanced for row in books.rows)


async def test_what_a_dead_gateway_left_is_given_up_once_and_nothing_else_is() -> None:
    bench = Bench()
    dead, living = [await bench.route("dead") for _ in range(2)], await bench.route("living")
    given_up, failed = Moved("route_decisions_given_up_total"), Moved("route_outcomes_total", outcome="failed")
    bench.plane.gone = {"dead"}
    await bench.wait(ORPHAN_S)
    assert (bench.num_open, given_up()) == (3, 0), "another gateway may settle them until then"
    await bench.wait(1)
    assert (bench.num_open, given_up(), failed()) == (1, 2, 2)
    assert bench.plane.asked[-1] == ("gateway", ["dead", "living"])
    await bench.wait(1)
    assert bench.plane.asked[-1] == ("gateway", ["living"])
    for decision_id in dead:
        await bench.router.report(decision_id, "lost", "worker_lost")
    await bench.wait(ORPHAN_S)
    assert (bench.num_open, given_up(), failed()) == (1, 2, 2)
    assert bench.replica.breaker.num_faults == 0, "nobody was told anything of the replica, then or later"
    assert bench.fleet.in_flight.unseen("w-1", 0.0).num_requests == 1
    await bench.router.report(living)
    assert bench.num_open == 0 and await bench.is_balanced()
    num_asked = len(bench.plane.asked)
    await bench.wait(5)
    assert len(bench.plane.asked) == num_asked, "nobody owes an outcome"


async def test_what_another_gateway_settled_meanwhile_is_not_given_up_as_well() -> None:
    bench = Bench()
    decision_id = await bench.route("dead")
    given_up = Moved("route_decisions_given_up_total")
    bench.plane.gone = {"dead"}
    await bench.wait(5)
    await bench.router.report(decision_id, "failed", "gateway_lost")
    await bench.wait(ORPHAN_S)
    assert (bench.num_open, given_up()) == (0, 0) and await bench.is_balanced()


async def test_each_router_gives_up_its_own_and_a_restarted_gateway_is_another_one() -> None:
    plane = Plane()
    one, other = Bench(plane), Bench(plane)
    for bench in (one, other):
        await bench.route("before")
        await bench.route("after")
    plane.gone = {"before"}
    await one.wait(ORPHAN_S + 1)
    assert (one.num_open, other.num_open) == (1, 2)
    await other.wait(ORPHAN_S + 1)
    assert (one.num_open, other.num_open) == (1, 1)
    assert [bench.fleet.in_flight.gateways.waiting() for bench in (one, other)] == [["after"], ["after"]]
    fresh = Bench(plane)  # a router that restarted knows of no decision, and has none to give up
    await fresh.wait(ORPHAN_S + 1)
    assert len(fresh.fleet.in_flight) == 0 and await fresh.is_balanced()


async def _nobody_says_gone(bench: Bench) -> None:
    bench.plane.gone = set()


async def _control_plane_is_away(bench: Bench) -> None:
    bench.plane.away = True


async def _it_routes(bench: Bench) -> None:
    await bench.wait(ORPHAN_S - 1)
    await bench.router.report(await bench.route("g"))


async def _it_reports(bench: Bench) -> None:
    await bench.wait(ORPHAN_S - 1)
    await bench.router.report("long over", gateway_id="g")


async def _it_is_attached(bench: Bench) -> None:
    """Cut off from the control plane and from this router, and its answer runs."""
    bench.attached = ["another", "g"]


async def _replica_cannot_be_asked(bench: Bench) -> None:
    bench.fleet.table.set_connected(bench.replica, False)


async def _replica_is_silent(bench: Bench) -> None:
    bench.is_silent, bench.now = True, bench.now + STALE_S + 1


KEEPS = (
    _nobody_says_gone,
    _control_plane_is_away,
    *(_it_routes, _it_reports, _it_is_attached, _replica_cannot_be_asked, _replica_is_silent),
)


@pytest.mark.parametrize("happens", KEEPS, ids=lambda happens: happens.__name__)
async def test_what_may_run_is_kept(happens: Callable[[Bench], Awaitable[None]]) -> None:
    bench = Bench()
    decision_id = await bench.route("g")
    bench.plane.gone = {"g"}
    await happens(bench)
    await bench.wait(ORPHAN_S)
    assert bench.num_open == 1
    await bench.router.report(decision_id)
    assert bench.num_open == 0 and await bench.is_balanced()


async def test_what_was_kept_is_given_up_when_its_replica_says_that_the_gateway_has_left() -> None:
    bench = Bench()
    await bench.route("g")
    bench.plane.gone, bench.attached = {"g"}, ["g"]
    await bench.wait(3 * ORPHAN_S)
    assert bench.num_open == 1
    bench.attached = []
    await bench.wait(1)
    assert bench.num_open == 0 and await bench.is_balanced()


async def test_a_decision_ends_with_its_replica_and_the_books_say_so() -> None:
    bench = Bench()
    await bench.route("g")
    bench.fleet.table.restart(bench.replica, "e2")
    assert (bench.num_open, bench.fleet.in_flight.gateways.waiting()) == (0, [])
    assert await bench.is_balanced()


async def test_the_oldest_are_forgotten_though_nothing_new_is_sent() -> None:
    """Of a gateway that nobody can say to be gone."""
    bench = Bench()
    await bench.route("g")
    sent_at = next(iter(bench.fleet.in_flight._open.values())).at
    bench.fleet.in_flight.forget(sent_at + FORGOTTEN_S)
    assert bench.num_open == 1
    bench.fleet.in_flight.forget(sent_at + FORGOTTEN_S + 1)
    assert bench.num_open == 0 and await bench.is_balanced()
