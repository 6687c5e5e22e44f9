"""Follows this service's section of the fleet snapshot; the last good one is on disk. Knows no section's meaning."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from headrace.v1 import fleet_pb2, fleet_pb2_grpc
from headrace_kit import logs, telemetry
from headrace_kit.files import write_atomically
from headrace_kit.lifecycle import backoff_s
from headrace_kit.serve import Host

log = logging.getLogger(__name__)
S = TypeVar("S", bound=Message)
_failures = telemetry.counter("config_reload_failures_total", "Snapshots that were refused, from the wire or the disk")
_version = telemetry.gauge("snapshot_version", "Version of the fleet snapshot in force")


class SnapshotClient(Generic[S]):
    """Subscribes for ever; ``version`` is the one in force, 0 before the first.

    ``apply(section)`` puts a whole section in force or raises ValueError, whose text goes into the NACK. A service that
    the control plane asks on behalf of operators sets ``endpoint``, the gRPC target of its internal listener.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        section_type: type[S],
        apply: Callable[[S], None],
        *,
        service: str,
        instance: str,
        state_dir: Path,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._stub: Any = fleet_pb2_grpc.FleetStub(channel)
        self._section_type, self._apply, self._sleep = section_type, apply, sleep
        self._service, self._instance, self._path = service, instance, state_dir / "snapshot.pb"
        self._first, self._acks = asyncio.Event(), asyncio.Queue[fleet_pb2.SnapshotAck]()
        self.version, self.endpoint, self._leaving = 0, "", False

    async def first(self) -> int:
        """Waits until a version is in force."""
        await self._first.wait()
        return self.version

    async def run(self) -> None:
        """Starts from disk, then follows the control plane and reconnects for ever; for ``host.tasks.start``."""
        await self._start_from_disk()
        attempt = 0
        while True:
            self._acks = asyncio.Queue()
            self._acks.put_nowait(self._ack())
            call = self._stub.WatchSnapshot(_drawn(self._acks))
            try:
                async for snapshot in call:
                    attempt = 0
                    self._acks.put_nowait(await self._receive(snapshot))
            except grpc.aio.AioRpcError as error:
                log.warning("snapshot_watch_lost", extra={"code": error.code().name, "detail": error.details()})
            finally:
                call.cancel()
            await self._sleep(backoff_s(attempt))
            attempt += 1

    async def leave(self) -> None:
        """Says that nobody has to miss this instance when its subscription ends; for ``host.on_drain``."""
        self._leaving = True
        self._acks.put_nowait(self._ack())

    async def _receive(self, snapshot: fleet_pb2.Snapshot) -> fleet_pb2.SnapshotAck:
        if error := self._put_in_force(snapshot):
            return self._ack(nacked=snapshot.version, error=error)
        try:
            await asyncio.to_thread(write_atomically, self._path, snapshot.SerializeToString())
        except OSError as failure:  # the version is in force all the same; only the next start is older
            log.error("snapshot_not_stored", extra={"path": self._path, "detail": failure})
        return self._ack()

    async def _start_from_disk(self) -> None:
        if await asyncio.to_thread(self._path.exists):
            try:
                self._put_in_force(fleet_pb2.Snapshot.FromString(await asyncio.to_thread(self._path.read_bytes)))
            except (DecodeError, OSError) as error:
                self._refused(0, f"{self._path}: {error}")

    def _put_in_force(self, snapshot: fleet_pb2.Snapshot) -> str:
        """Returns why not, or nothing."""
        if hashlib.sha256(snapshot.section).digest() != snapshot.hash:
            return self._refused(snapshot.version, "the content hash does not match")
        try:
            self._apply(self._section_type.FromString(snapshot.section))
        except (ValueError, DecodeError) as error:
            return self._refused(snapshot.version, str(error) or type(error).__name__)
        self.version = snapshot.version
        _version.set(self.version)
        logs.set_process_fields(snapshot_version=self.version)
        log.info("snapshot_applied")
        self._first.set()
        return ""

    def _refused(self, version: int, error: str) -> str:
        _failures.inc()
        log.error("snapshot_refused", extra={"refused_version": version, "detail": error})
        return error

    def _ack(self, **fate: Any) -> fleet_pb2.SnapshotAck:
        fate |= {"last_good": self.version, "endpoint": self.endpoint, "leaving": self._leaving}
        return fleet_pb2.SnapshotAck(service=self._service, instance=self._instance, **fate)


class Follower(Protocol):
    """The fields of the configuration of a service that follows the snapshot."""

    @property
    def state_dir(self) -> Path: ...
    @property
    def advertise(self) -> str | None: ...


def follow(
    host: Host, channel: grpc.aio.Channel, section_type: type[S], apply: Callable[[S], None], config: Follower
) -> SnapshotClient[S]:
    """The section of the host's service, from now on; the host is ready with the first version."""
    client = SnapshotClient(
        channel, section_type, apply, service=host.service, instance=host.instance, state_dir=config.state_dir
    )
    client.endpoint = config.advertise or host.grpc.address

    async def first_snapshot() -> None:
        await client.first()
        host.health.serving("snapshot")

    host.health.add("snapshot")
    host.on_drain(client.leave)
    host.tasks.start("snapshot", client.run)
    host.tasks.start("first_snapshot", first_snapshot)
    return client


async def _drawn(acks: "asyncio.Queue[fleet_pb2.SnapshotAck]") -> AsyncIterator[fleet_pb2.SnapshotAck]:
    while True:
        yield await acks.get()
