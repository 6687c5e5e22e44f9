"""The Fleet service over real gRPC on loopback: versions, lists, leases, artifacts."""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, response_pb2, snapshot_pb2, worker_pb2
from headrace_controlplane import fleet_servicer
from headrace_controlplane.artifacts import CHUNK_BYTES, Artifacts
from headrace_controlplane.demand import DemandBoard
from headrace_controlplane.fleet_servicer import FleetServicer, FleetState, reachable
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.referee import Referee
from headrace_controlplane.registry import Record
from headrace_controlplane.roster import Roster
from headrace_controlplane.store import Store
from headrace_controlplane.subscribers import Subscribers
from headrace_kit import channels
from headrace_kit.errors import from_rpc_error
from headrace_kit.health import Health
from headrace_kit.listeners import GrpcListener
from headrace_kit.snapshot import SnapshotClient
from tests.meters import Moved, reading
from tests.unit.controlplane.fakes import SCRIPTED, scripted

TOKEN = "fleet-test-token"
CARD = b"{}" * CHUNK_BYTES
DIGEST = hashlib.sha256(CARD).digest()
READY = worker_pb2.REPLICA_STATE_READY


async def until(condition: Callable[[], Any], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        await asyncio.sleep(0.001)


@dataclass
class Plane:
    """A served control plane without its process."""

    state: FleetState
    draining: asyncio.Event
    channel: grpc.aio.Channel
    address: str

    @property
    def stub(self) -> Any:
        return fleet_pb2_grpc.FleetStub(self.channel)


@pytest.fixture
async def plane(ledger: Ledger, tmp_path: Path) -> AsyncIterator[Plane]:
    ledger.apply(SCRIPTED, "")
    roster = Roster(tmp_path / "replicas.pb", lease_s=10.0)
    state = FleetState(ledger, roster, Artifacts(tmp_path / "artifacts"), Subscribers(), DemandBoard(), Referee(ledger))
    draining = asyncio.Event()
    listener = GrpcListener("127.0.0.1:0", Health(), token=TOKEN)
    fleet_pb2_grpc.add_FleetServicer_to_server(FleetServicer(state, draining), listener)
    await listener.start()
    async with channels.connect(listener.address, token=TOKEN) as channel:
        yield Plane(state, draining, channel, listener.address)
    await listener.stop(0)


def heartbeat(replica_id: str = "w-0", epoch: str = "e1", **facts: Any) -> fleet_pb2.Heartbeat:
    ref = response_pb2.ReplicaRef(id=replica_id, epoch=epoch, endpoint="127.0.0.1:9")
    row = {"ref": ref, "model": "scripted", "revision": "1", "state": READY, **facts}
    return fleet_pb2.Heartbeat(replica=fleet_pb2.Replica(**row))


async def beat(plane: Plane, message: fleet_pb2.Heartbeat) -> fleet_pb2.Directive:
    call = plane.stub.Register()
    await call.write(message)
    directive = await call.read()
    await call.done_writing()
    assert isinstance(directive, fleet_pb2.Directive), await call.details()
    return directive


def chunks(content: bytes, digest: bytes) -> Iterator[fleet_pb2.ArtifactChunk]:
    yield fleet_pb2.ArtifactChunk(digest=digest, total_bytes=len(content), kind="model_card", data=content[:1000])
    yield fleet_pb2.ArtifactChunk(data=content[1000:])


@contextlib.asynccontextmanager
async def link(target: str) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """A TCP relay to ``target``: its address, and what cuts all connections and refuses new ones from then on."""
    is_cut, writers = [False], list[asyncio.StreamWriter]()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_cut[0]:
            return writer.close()
        host, _, port = target.rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        writers.extend([writer, there_writer])
        await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))

    def cut() -> None:
        is_cut[0] = not is_cut[0]
        for each in writers if is_cut[0] else ():
            each.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"{host}:{port}", cut
    finally:
        is_cut[0] = False
        cut()
        server.close()


class Reader:
    """A gateway's subscription, and what it reads from the section in force."""

    def __init__(self, channel: grpc.aio.Channel, name: str, root: Path) -> None:
        self.num_replicas = 0
        self.client = SnapshotClient(
            channel, snapshot_pb2.RouterSection, self.apply, service="router", instance=name, state_dir=root / name
        )

    def apply(self, section: snapshot_pb2.RouterSection) -> None:
        self.num_replicas = section.pools[0].min_replicas


async def test_every_subscriber_comes_to_run_each_version_and_a_partitioned_one_keeps_its_own(
    plane: Plane, tmp_path: Path
) -> None:
    """B159: each pulls for itself, so none can take a change away from the others."""
    async with link(plane.address) as (address, cut), channels.connect(address, token=TOKEN) as far:
        readers = [Reader(plane.channel, f"g{i}", tmp_path) for i in range(3)] + [Reader(far, "far", tmp_path)]
        tasks = [asyncio.create_task(each.client.run()) for each in readers]
        for replicas in range(2, 8):
            plane.state.ledger.apply(scripted(min=replicas), "")
        assert plane.state.ledger.version == 7
        await until(lambda: [each.client.version for each in readers] == [7] * 4)
        cut()
        await until(lambda: len(list(plane.state.subscribers)) == 3)
        plane.state.ledger.apply(scripted(min=8), "")
        await until(lambda: [each.client.version for each in readers] == [8, 8, 8, 7])
        assert [readers[i % 3].num_replicas for i in range(20)] == [8] * 20
        assert readers[3].num_replicas == 7
        await until(lambda: {s.instance: s.version for s in plane.state.subscribers} == {"g0": 8, "g1": 8, "g2": 8})
        cut()
        await until(lambda: readers[3].client.version == 8)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_refused_version_is_not_sent_again_and_the_next_one_is(plane: Plane, tmp_path: Path) -> None:
    offered: list[int] = []

    def apply(section: snapshot_pb2.RouterSection) -> None:
        offered.append(section.pools[0].min_replicas)
        if section.pools[0].min_replicas == 2:
            raise ValueError("two is not for me")

    client = SnapshotClient(
        plane.channel, snapshot_pb2.RouterSection, apply, service="router", instance="r", state_dir=tmp_path / "r"
    )
    task = asyncio.create_task(client.run())
    await until(lambda: client.version == 1)
    plane.state.ledger.apply(scripted(min=2), "")
    await until(lambda: any(s.nacked == 2 for s in plane.state.subscribers))
    (subscriber,) = plane.state.subscribers
    assert (subscriber.version, subscriber.error) == (1, "two is not for me")
    plane.state.ledger.changed.set()
    await asyncio.sleep(0.05)
    assert offered == [1, 2]
    plane.state.ledger.apply(scripted(min=3), "")
    await until(lambda: client.version == 3)
    await until(lambda: subscriber.version == 3 and subscriber.nacked == 0)
    task.cancel()
    await asyncio.wait([task])


async def test_each_audience_gets_its_own_section(plane: Plane) -> None:
    assert plane.state.ledger.current is not None
    for audience, content in plane.state.ledger.current.sections.items():
        call = plane.stub.WatchSnapshot(iter([fleet_pb2.SnapshotAck(service=audience, instance="i")]))
        snapshot = await call.read()
        assert (snapshot.version, snapshot.section) == (1, content)
        assert snapshot.hash == hashlib.sha256(content).digest()
        call.cancel()


@pytest.mark.parametrize(
    ("ack", "field"),
    [
        (fleet_pb2.SnapshotAck(service="stranger", instance="i"), "service"),
        (fleet_pb2.SnapshotAck(service="router"), "instance"),
    ],
)
async def test_a_subscription_must_say_whose_it_is(plane: Plane, ack: fleet_pb2.SnapshotAck, field: str) -> None:
    call = plane.stub.WatchSnapshot(iter([ack]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert from_rpc_error(caught.value, fallback="internal").field == field


async def test_a_store_that_was_lost_numbers_on_above_its_subscribers(plane: Plane) -> None:
    call = plane.stub.WatchSnapshot(iter([fleet_pb2.SnapshotAck(service="router", instance="r", last_good=41)]))
    assert (await call.read()).version == 42
    call.cancel()


async def test_the_list_comes_whole_then_changes_come(plane: Plane) -> None:
    await beat(plane, heartbeat("w-0"))
    call = plane.stub.WatchReplicas(fleet_pb2.WatchReplicasRequest(instance="i", revision=999))
    first = await call.read()
    assert (first.full, [r.ref.id for r in first.replicas]) == (True, ["w-0"])
    assert 9_000 < first.replicas[0].lease_ms <= 10_000
    await beat(plane, heartbeat("w-1"))
    second = await call.read()
    assert (second.full, [r.ref.id for r in second.replicas], second.registry_id) == (False, ["w-1"], first.registry_id)
    assert second.revision > first.revision
    await beat(plane, heartbeat("w-0", state=worker_pb2.REPLICA_STATE_GONE))
    assert list((await call.read()).removed) == ["w-0"]
    call.cancel()


async def test_the_whole_list_comes_again_and_again(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """B74: an event that was lost, wherever, is healed by the next list."""
    monkeypatch.setattr(fleet_servicer, "RELIST_S", 0.02)
    call = plane.stub.WatchReplicas(fleet_pb2.WatchReplicasRequest(instance="i"))
    assert [(await call.read()).full for _ in range(3)] == [True, True, True]
    call.cancel()


async def test_a_lease_runs_out_without_any_event() -> None:
    expired = Moved("replica_leases_expired_total")
    roster = Roster(Path("/nowhere"), lease_s=0.05, clock=time.monotonic)
    roster.heartbeat(Record("w-0", "e1", "127.0.0.1:9"))
    task = asyncio.create_task(roster.run_out_leases())
    await until(lambda: len(roster.registry) == 0)
    roster.heartbeat(Record("w-1", "e1", "127.0.0.1:9"))
    await until(lambda: expired() == 2)
    assert len(roster.registry) == 0
    task.cancel()
    await asyncio.wait([task])


async def test_a_replaced_epoch_is_told_to_stop(plane: Plane) -> None:
    assert not (await beat(plane, heartbeat(epoch="e1"))).stop
    assert not (await beat(plane, heartbeat(epoch="e2"))).stop
    assert (await beat(plane, heartbeat(epoch="e1"))).stop


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ref": response_pb2.ReplicaRef(epoch="e", endpoint="x")}, "replica.ref.id"),
        ({"ref": response_pb2.ReplicaRef(id="w", endpoint="x")}, "replica.ref.epoch"),
        ({"ref": response_pb2.ReplicaRef(id="w", epoch="e")}, "replica.ref.endpoint"),
        ({"state": 0}, "replica.state"),
        ({"state": 77}, "replica.state"),
        ({"role": "juggler"}, "replica.role"),
    ],
)
async def test_a_heartbeat_that_says_too_little_is_refused(plane: Plane, change: dict[str, Any], field: str) -> None:
    call = plane.stub.Register()
    await call.write(heartbeat(**change))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = from_rpc_error(caught.value, fallback="internal")
    assert (error.reason, error.field) == ("invalid_argument", field)


async def test_an_unknown_card_is_asked_for_and_then_part_of_the_next_version(plane: Plane) -> None:
    assert (await beat(plane, heartbeat(card_digest=DIGEST))).send_card
    answer = await plane.stub.PutArtifact(chunks(CARD, DIGEST), timeout=10)
    assert answer.digest == DIGEST
    assert plane.state.ledger.card("scripted", "1") == DIGEST
    assert plane.state.ledger.version == 2
    assert not (await beat(plane, heartbeat(card_digest=DIGEST))).send_card
    assert plane.state.ledger.version == 2
    parts = [part async for part in plane.stub.GetArtifact(fleet_pb2.GetArtifactRequest(digest=DIGEST), timeout=10)]
    assert (len(parts), parts[0].total_bytes, parts[0].digest) == (2, len(CARD), DIGEST)
    assert b"".join(part.data for part in parts) == CARD


async def test_a_card_stays_while_someone_carries_it(plane: Plane) -> None:
    other = hashlib.sha256(b"other").digest()
    await plane.stub.PutArtifact(chunks(CARD, DIGEST), timeout=10)
    await plane.stub.PutArtifact(chunks(b"other", other), timeout=10)
    await beat(plane, heartbeat("w-0", card_digest=DIGEST))
    await beat(plane, heartbeat("w-1", card_digest=other))
    assert plane.state.ledger.card("scripted", "1") == DIGEST
    await beat(plane, heartbeat("w-0", state=worker_pb2.REPLICA_STATE_GONE))
    await beat(plane, heartbeat("w-1", card_digest=other))
    assert plane.state.ledger.card("scripted", "1") == other


def entry(plane: Plane) -> snapshot_pb2.ModelEntry:
    assert plane.state.ledger.current is not None
    return snapshot_pb2.GatewaySection.FromString(plane.state.ledger.current.sections["gateway"]).models[0]


async def test_one_that_still_loads_does_not_keep_the_card_of_another_out(plane: Plane) -> None:
    await plane.stub.PutArtifact(chunks(CARD, DIGEST), timeout=10)
    await beat(plane, heartbeat("w-0", state=worker_pb2.REPLICA_STATE_LOADING))
    await beat(plane, heartbeat("w-1", card_digest=DIGEST))
    assert entry(plane).card_digest == DIGEST


async def test_a_new_revision_is_served_when_its_first_replica_is_ready(plane: Plane, store: Store) -> None:
    new = hashlib.sha256(b"new").digest()
    await plane.stub.PutArtifact(chunks(CARD, DIGEST), timeout=10)
    await plane.stub.PutArtifact(chunks(b"new", new), timeout=10)
    await beat(plane, heartbeat("w-0", card_digest=DIGEST))
    plane.state.ledger.apply(SCRIPTED.replace("{source: scripted}", '{source: scripted, revision: "2"}'), "")
    assert (entry(plane).revision, entry(plane).card_digest) == ("1", DIGEST)
    again = Ledger(store, plane.state.ledger.vault)
    assert again.version == plane.state.ledger.version, "a restart in the middle changes nothing"
    loading: dict[str, Any] = {"revision": "2", "card_digest": new, "state": worker_pb2.REPLICA_STATE_WARMING}
    await beat(plane, heartbeat("w-1", **loading))
    assert entry(plane).revision == "1"
    await beat(plane, heartbeat("w-1", **{**loading, "state": READY}))
    assert (entry(plane).revision, entry(plane).card_digest) == ("2", new)


@pytest.mark.parametrize("digest", [b"", b"x" * 32])
async def test_an_artifact_that_is_not_what_it_says_is_refused(plane: Plane, digest: bytes) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plane.stub.PutArtifact(chunks(CARD, digest), timeout=10)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError):
        await plane.stub.GetArtifact(fleet_pb2.GetArtifactRequest(digest=digest), timeout=10).read()


async def test_demand_is_kept_per_router_while_it_is_fresh() -> None:
    now = [0.0]
    board = DemandBoard(lambda: now[0])
    arrivals = Moved("demand_arrivals_total")
    asked = [fleet_pb2.ModelDemand(model="m", num_arrivals=3, num_held=2)]
    for name in ("a", "b"):
        board.note(fleet_pb2.DemandReport(router_id=name, models=asked))
    assert (arrivals(), reading("demand_held")) == (6, 4)
    now[0] = 4.9
    board.note(fleet_pb2.DemandReport(router_id="a"))
    assert {report.router_id for report in board.fresh()} == {"a", "b"}
    now[0] = 5.1
    assert {report.router_id for report in board.fresh()} == {"a"}


async def test_a_demand_report_needs_a_router(plane: Plane) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plane.stub.Demand(fleet_pb2.DemandReport(), timeout=5)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    await plane.stub.Demand(fleet_pb2.DemandReport(router_id="r"), timeout=5)
    assert len(plane.state.demand.fresh()) == 1


async def test_long_streams_end_when_the_process_stops(plane: Plane) -> None:
    snapshots = plane.stub.WatchSnapshot()
    await snapshots.write(fleet_pb2.SnapshotAck(service="router", instance="r"))
    assert await snapshots.read() is not grpc.aio.EOF
    replicas = plane.stub.WatchReplicas(fleet_pb2.WatchReplicasRequest())
    assert await replicas.read() is not grpc.aio.EOF
    register = plane.stub.Register()
    await register.write(heartbeat())
    assert await register.read() is not grpc.aio.EOF
    plane.draining.set()
    for call in (snapshots, replicas, register):
        async with asyncio.timeout(5):
            while await call.read() is not grpc.aio.EOF:
                continue  # what was under way still arrives


@pytest.mark.parametrize(
    ("endpoint", "peer", "expected"),
    [
        ("10.0.0.1:5", "ipv4:10.9.9.9:1234", "10.0.0.1:5"),
        ("0.0.0.0:5", "ipv4:10.9.9.9:1234", "10.9.9.9:5"),
        ("[::]:5", "ipv6:%5Bfd00::1%5D:1234", "[fd00::1]:5"),
        ("0.0.0.0:5", "unix:", "127.0.0.1:5"),
        ("", "ipv4:10.9.9.9:1234", ""),
    ],
)
def test_an_endpoint_that_means_all_addresses_is_made_one(endpoint: str, peer: str, expected: str) -> None:
    assert reachable(endpoint, peer) == expected
