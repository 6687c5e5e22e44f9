import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.v1 import fleet_pb2, fleet_pb2_grpc
from headrace.v1.snapshot_pb2 import GatewaySection, ModelEntry
from headrace_kit import logs, telemetry
from headrace_kit.health import Health
from headrace_kit.listeners import GrpcListener
from headrace_kit.snapshot import SnapshotClient
from tests.unit.kit.fakes import TOKEN, channel


def snapshot(version: int, *models: str) -> fleet_pb2.Snapshot:
    section = GatewaySection(models=[ModelEntry(name=name) for name in models]).SerializeToString()
    return fleet_pb2.Snapshot(version=version, hash=hashlib.sha256(section).digest(), section=section)


class ControlPlane(fleet_pb2_grpc.FleetServicer):
    """Sends what ``to_send`` gets and keeps every ack."""

    def __init__(self) -> None:
        self.to_send: asyncio.Queue[fleet_pb2.Snapshot | None] = asyncio.Queue()
        self.acks: asyncio.Queue[fleet_pb2.SnapshotAck] = asyncio.Queue()

    async def WatchSnapshot(self, acks: AsyncIterator[Any], _context: Any) -> AsyncIterator[fleet_pb2.Snapshot]:
        async def keep() -> None:
            async for ack in acks:
                self.acks.put_nowait(ack)

        keeping = asyncio.create_task(keep())
        try:
            while (sent := await self.to_send.get()) is not None:
                yield sent
        finally:
            keeping.cancel()

    async def ack(self) -> fleet_pb2.SnapshotAck:
        return await asyncio.wait_for(self.acks.get(), 5)


@contextlib.asynccontextmanager
async def control_plane(listen: str = "127.0.0.1:0") -> AsyncIterator[tuple[ControlPlane, str]]:
    plane, listener = ControlPlane(), GrpcListener(listen, Health(), token=TOKEN)
    fleet_pb2_grpc.add_FleetServicer_to_server(plane, listener)
    await listener.start()
    try:
        yield plane, listener.address
    finally:
        await listener.stop(0)


class Gateway:
    """The last section applied, and a client that runs in the background."""

    def __init__(self, opened: Any, state_dir: Path) -> None:
        self.models: list[str] | None = None
        self.naps: list[float] = []
        self.third_nap = asyncio.Event()
        self.client = SnapshotClient(
            opened, GatewaySection, self.apply, service="gateway", instance="g1", state_dir=state_dir, sleep=self.nap
        )

    def apply(self, section: GatewaySection) -> None:
        if not section.models:
            raise ValueError("models must not be empty")
        self.models = [model.name for model in section.models]

    async def nap(self, duration_s: float) -> None:
        self.naps.append(duration_s)
        if len(self.naps) == 3:
            self.third_nap.set()
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def gateway(address: str, state_dir: Path) -> AsyncIterator[Gateway]:
    async with channel(address) as opened:
        made = Gateway(opened, state_dir)
        task = asyncio.create_task(made.client.run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def failures() -> float:
    return telemetry.REGISTRY.get_sample_value("config_reload_failures_total") or 0.0


async def test_a_version_is_subscribed_applied_and_acked(tmp_path: Path) -> None:
    async with control_plane() as (plane, address), gateway(address, tmp_path) as service:
        assert await plane.ack() == fleet_pb2.SnapshotAck(service="gateway", instance="g1")
        plane.to_send.put_nowait(snapshot(7, "a"))
        assert await plane.ack() == fleet_pb2.SnapshotAck(service="gateway", instance="g1", last_good=7)
        assert (await service.client.first(), service.client.version, service.models) == (7, 7, ["a"])
        assert logs._process["snapshot_version"] == 7


async def test_one_that_is_stopped_says_goodbye(tmp_path: Path) -> None:
    async with control_plane() as (plane, address), gateway(address, tmp_path) as service:
        assert not (await plane.ack()).leaving
        await service.client.leave()
        assert (await plane.ack()).leaving
        plane.to_send.put_nowait(snapshot(7, "a"))
        assert (await plane.ack()).leaving, "a version that comes while it drains does not take the goodbye back"


@pytest.mark.parametrize(
    "bad, reason",
    [
        (snapshot(8), "models must not be empty"),
        (fleet_pb2.Snapshot(version=8, hash=b"x" * 32, section=snapshot(8, "b").section), "content hash"),
        (fleet_pb2.Snapshot(version=8, hash=hashlib.sha256(b"\xff").digest(), section=b"\xff"), ""),
    ],
)
async def test_a_bad_version_is_nacked_and_the_last_good_one_stays(
    tmp_path: Path, bad: fleet_pb2.Snapshot, reason: str
) -> None:
    before = failures()
    async with control_plane() as (plane, address), gateway(address, tmp_path) as service:
        await plane.ack()
        for sent in (snapshot(7, "a"), bad):
            plane.to_send.put_nowait(sent)
            fate = await plane.ack()
        assert (fate.last_good, fate.nacked) == (7, 8)
        assert fate.error and reason in fate.error
        assert (service.client.version, service.models, failures()) == (7, ["a"], before + 1)
        plane.to_send.put_nowait(snapshot(9, "c"))
        assert (await plane.ack()).last_good == 9
    assert fleet_pb2.Snapshot.FromString((tmp_path / "snapshot.pb").read_bytes()).version == 9


async def test_a_service_starts_from_disk_while_the_control_plane_is_away(tmp_path: Path) -> None:
    (tmp_path / "snapshot.pb").write_bytes(snapshot(5, "kept").SerializeToString())
    async with control_plane() as (_, address):
        pass
    async with gateway(address, tmp_path) as service:
        assert await asyncio.wait_for(service.client.first(), 5) == 5
        assert service.models == ["kept"]
        await asyncio.wait_for(service.third_nap.wait(), 10)
        async with control_plane(address) as (plane, _):
            assert (await asyncio.wait_for(plane.acks.get(), 10)).last_good == 5
            plane.to_send.put_nowait(snapshot(6, "new"))
            assert (await plane.ack()).last_good == 6
    assert all(0.05 <= nap <= 5 for nap in service.naps)


async def test_a_lost_watch_is_resumed_from_the_last_good_version(tmp_path: Path) -> None:
    async with control_plane() as (plane, address), gateway(address, tmp_path):
        await plane.ack()
        plane.to_send.put_nowait(snapshot(7, "a"))
        assert (await plane.ack()).last_good == 7
        plane.to_send.put_nowait(None)
        assert (await plane.ack()).last_good == 7


@pytest.mark.parametrize("damage", [lambda data: data[:-1] + b"\0", lambda data: data[:10], lambda data: b"\xff"])
async def test_a_damaged_file_is_counted_and_not_used(tmp_path: Path, damage: Any) -> None:
    (tmp_path / "snapshot.pb").write_bytes(damage(snapshot(5, "kept").SerializeToString()))
    before = failures()
    async with control_plane() as (plane, address), gateway(address, tmp_path) as service:
        assert (await plane.ack()).last_good == 0
        assert (service.models, failures()) == (None, before + 1)


async def test_a_disk_that_takes_no_file_does_not_refuse_the_version(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the directory should be")
    async with control_plane() as (plane, address), gateway(address, tmp_path / "state") as service:
        await plane.ack()
        plane.to_send.put_nowait(snapshot(7, "a"))
        assert (await plane.ack()).last_good == 7
        assert service.models == ["a"]
