"""Roster and watchers against real gRPC servers on loopback: lists, gaps, breaks, restarts."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, snapshot_pb2, worker_pb2, worker_pb2_grpc
from headrace_kit import channels
from headrace_kit.health import Health
from headrace_kit.listeners import GrpcListener
from headrace_router.demand import Demand
from headrace_router.fleet_rules import FleetRules
from headrace_router.replicas import ReplicaTable
from headrace_router.reporting import DemandReporter, ModelHealth
from headrace_router.roster import Roster
from headrace_router.scoring import Ask
from headrace_router.watcher import Credentials, watchers
from tests.unit.router.fakes import READY, Fleet, full, row, until

TOKEN = "following-test-token"


class Registry(fleet_pb2_grpc.FleetServicer):
    """Sends what a test puts into the queue; None ends the stream."""

    def __init__(self) -> None:
        self.updates: asyncio.Queue[fleet_pb2.ReplicaSet | None] = asyncio.Queue()
        self.num_subscriptions = 0
        self.demand: list[fleet_pb2.DemandReport] = []

    async def WatchReplicas(self, request: Any, context: Any) -> AsyncIterator[fleet_pb2.ReplicaSet]:
        self.num_subscriptions += 1
        while (update := await self.updates.get()) is not None:
            yield update

    async def Demand(self, request: Any, context: Any) -> fleet_pb2.DemandResponse:
        self.demand.append(request)
        return fleet_pb2.DemandResponse()


class Engine(worker_pb2_grpc.EngineServicer):
    """A replica whose events a test sends."""

    def __init__(self) -> None:
        self.epoch = "e1"
        self.events: asyncio.Queue[worker_pb2.WatchEvent | None] = asyncio.Queue()
        self.num_described = 0

    def say(self, **event: Any) -> None:
        self.events.put_nowait(worker_pb2.WatchEvent(epoch=self.epoch, **event))

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[worker_pb2.WatchEvent]:
        while (event := await self.events.get()) is not None:
            yield event

    async def Describe(self, request: Any, context: Any) -> worker_pb2.Description:
        self.num_described += 1
        return worker_pb2.Description(page_tokens=16, kv_context=self.epoch.encode())


async def serve(add: Any, servicer: Any, listen: str = "127.0.0.1:0") -> GrpcListener:
    listener = GrpcListener(listen, Health(), token=TOKEN)
    add(servicer, listener)
    await listener.start()
    return listener


@pytest.fixture
async def registry() -> AsyncIterator[tuple[Registry, grpc.aio.Channel]]:
    servicer = Registry()
    listener = await serve(fleet_pb2_grpc.add_FleetServicer_to_server, servicer)
    async with channels.connect(listener.address, token=TOKEN) as channel:
        yield servicer, channel
    await listener.stop(0)


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, GrpcListener]]:
    servicer = Engine()
    listener = await serve(worker_pb2_grpc.add_EngineServicer_to_server, servicer)
    yield servicer, listener
    await listener.stop(0)


async def test_a_gap_in_the_list_asks_for_all_of_it_again(
    registry: tuple[Registry, grpc.aio.Channel], tmp_path: Path
) -> None:
    servicer, channel = registry
    fleet = Fleet(time.monotonic)
    task = asyncio.create_task(Roster(fleet.table, channel, "i", tmp_path).run())
    servicer.updates.put_nowait(full(row("w-1"), revision=5))
    await until(lambda: fleet.table.get("w-1"))
    servicer.updates.put_nowait(fleet_pb2.ReplicaSet(registry_id="another", revision=6, replicas=[row("w-9")]))
    await until(lambda: servicer.num_subscriptions == 2)
    assert fleet.table.get("w-9") is None
    servicer.updates.put_nowait(full(row("w-2"), revision=7))
    await until(lambda: fleet.table.get("w-2"))
    assert fleet.table.get("w-1") is None
    task.cancel()


async def test_the_list_is_there_without_a_control_plane_once_it_was_known(
    registry: tuple[Registry, grpc.aio.Channel], tmp_path: Path
) -> None:
    servicer, channel = registry
    first = Fleet(time.monotonic)
    task = asyncio.create_task(Roster(first.table, channel, "i", tmp_path).run())
    servicer.updates.put_nowait(full(row("w-1")))
    await until((tmp_path / "replicas.pb").exists)
    task.cancel()
    async with channels.connect("127.0.0.1:1", token=TOKEN) as nowhere:
        second = Fleet(time.monotonic)
        roster = Roster(second.table, nowhere, "i", tmp_path)
        task = asyncio.create_task(roster.run())
        await asyncio.wait_for(roster.known.wait(), 10)
        assert second.table.get("w-1") is not None
        task.cancel()
        await asyncio.wait([task])


def watch(table: ReplicaTable) -> "asyncio.Task[None]":
    return asyncio.create_task(watchers(table, Credentials("r", TOKEN, None)).run())


async def test_readiness_load_and_coefficients_are_the_replicas_own_word(
    engine: tuple[Engine, GrpcListener],
) -> None:
    servicer, listener = engine
    fleet = Fleet(time.monotonic)
    task = watch(fleet.table)
    fleet.table.apply(full(row("w-1", endpoint=listener.address)))
    servicer.say(state=worker_pb2.REPLICA_STATE_LOADING)
    servicer.say(load=worker_pb2.Load())
    await until(lambda: fleet.table.views("m", {})[0].connected)
    assert (fleet.table.num_ready("m"), servicer.num_described) == (0, 0)
    servicer.say(state=READY)
    servicer.say(load=worker_pb2.Load(num_running=3))
    servicer.say(step_model=worker_pb2.StepModel(coefficients={"step": 0.5}))
    await until(lambda: fleet.table.last_cost.get("m"))
    view = fleet.table.views("m", {})[0]
    assert (view.state, view.num_running, view.fresh) == ("ready", 3, True)
    replica = fleet.table.get("w-1")
    assert replica is not None
    assert replica.description is not None
    assert replica.description.kv_context == b"e1"
    task.cancel()
    await asyncio.wait([task])


async def test_a_replica_whose_watch_breaks_is_not_ready_until_it_is_back(
    engine: tuple[Engine, GrpcListener],
) -> None:
    """B74: nothing of this needs the control plane."""
    servicer, listener = engine
    fleet = Fleet(time.monotonic)
    task = watch(fleet.table)
    fleet.table.apply(full(row("w-1", endpoint=listener.address)))
    servicer.say(state=READY)
    await until(lambda: fleet.table.num_ready("m") == 1)
    await listener.stop(0)
    await until(lambda: fleet.table.num_ready("m") == 0)
    servicer.epoch = "e2"
    again = await serve(worker_pb2_grpc.add_EngineServicer_to_server, servicer, listener.address)
    servicer.say(state=READY)
    await until(lambda: fleet.table.num_ready("m") == 1)
    assert fleet.table.views("m", {})[0].epoch == "e2"
    task.cancel()
    await asyncio.wait([task])
    await again.stop(0)


async def test_a_cache_reset_is_seen_with_the_next_report(engine: tuple[Engine, GrpcListener]) -> None:
    """B87: the clear event is lost, and the load report that follows tells the new epoch and its context."""
    servicer, listener = engine
    fleet = Fleet(time.monotonic)
    task = watch(fleet.table)
    fleet.table.apply(full(row("w-1", endpoint=listener.address)))
    servicer.say(state=READY)
    await until(lambda: fleet.table.num_ready("m") == 1)
    servicer.epoch = "e2"
    servicer.say(load=worker_pb2.Load(num_running=1))
    await until(lambda: fleet.table.views("m", {})[0].num_running == 1)
    replica = fleet.table.get("w-1")
    assert replica is not None
    assert replica.description is not None
    assert (replica.epoch, replica.ready, replica.description.kv_context) == ("e2", True, b"e2")
    task.cancel()
    await asyncio.wait([task])


async def test_a_replica_that_leaves_the_list_is_watched_no_more(engine: tuple[Engine, GrpcListener]) -> None:
    servicer, listener = engine
    fleet = Fleet(time.monotonic)
    each = watchers(fleet.table, Credentials("r", TOKEN, None))
    task = asyncio.create_task(each.run())
    fleet.table.apply(full(row("w-1", endpoint=listener.address)))
    servicer.say(state=READY)
    await until(lambda: fleet.table.num_ready("m") == 1)
    fleet.table.apply(full(revision=2))
    await until(lambda: not each._tasks)
    task.cancel()
    await asyncio.wait([task])


def shown(health: Health) -> dict[str, Any]:
    components: Any = health.report()["components"]
    return dict(components["model:m"])


async def test_models_have_a_health_of_their_own() -> None:
    """B74: without a replica the component of the model is not serving, and the router is ready all the same."""
    fleet, health = Fleet(time.monotonic), Health()
    models = ModelHealth(health, fleet.rules, fleet.table)
    models.update()
    assert shown(health) == {"serving": False, "critical": False, "reason": "no replica is ready"}
    assert health.ready
    (replica,) = fleet.ready("w-1")
    models.update()
    assert shown(health)["serving"]
    fleet.table.set_connected(replica, False)
    models.update()
    assert not shown(health)["serving"]


async def test_demand_is_reported_each_second_also_when_there_is_none(
    registry: tuple[Registry, grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence is missing data, and zero is not silence."""
    servicer, channel = registry
    monkeypatch.setattr("headrace_router.reporting.INTERVAL_S", 0.01)
    demand = Demand()
    demand.held(Ask(model="m"), "token", time.monotonic())
    task = asyncio.create_task(DemandReporter(demand, channel, "router-1").run())
    await until(lambda: servicer.demand)
    first = servicer.demand[0]
    assert (first.router_id, [m.num_held for m in first.models]) == ("router-1", [1])
    demand.let_go("m", "token")
    await until(lambda: any(not report.models for report in servicer.demand))
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    "pools",
    [[("p", "")], [("", "m")], [("p", "m"), ("p", "m")]],
)
def test_a_section_that_makes_no_sense_is_refused_whole(pools: list[tuple[str, str]]) -> None:
    rules = FleetRules()
    rules.apply(snapshot_pb2.RouterSection(pools=[snapshot_pb2.Pool(name="good", model="m")]))
    with pytest.raises(ValueError, match="pool"):
        rules.apply(
            snapshot_pb2.RouterSection(pools=[snapshot_pb2.Pool(name=name, model=model) for name, model in pools])
        )
    assert list(rules.pools) == ["good"]
