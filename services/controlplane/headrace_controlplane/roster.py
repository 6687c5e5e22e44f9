"""The registry at work: it wakes watchers, runs leases out, and survives a restart on disk. Decides no lease itself."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from google.protobuf.message import DecodeError

from headrace.v1 import fleet_pb2
from headrace_controlplane.registry import Record, Registry
from headrace_controlplane.replica_messages import to_record, to_set
from headrace_controlplane.streams import any_of
from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from headrace_kit.files import write_atomically

log = logging.getLogger(__name__)
_expired = telemetry.counter("replica_leases_expired_total", "Replicas that were not heard of for a whole lease")
_replicas = telemetry.gauge("replicas", "Replicas with a lease, by state", ["state"])
_STATES = ("loading", "warming", "ready", "degraded", "draining")
_STORE_EVERY_S = 0.5


class Roster:
    """``registry_id`` is new with each process; ``changed`` is set and replaced when the registry's revision rises."""

    def __init__(self, path: Path, *, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self.registry_id = secrets.token_hex(8)
        self.registry = Registry(lease_s=lease_s, now=clock(), restored=_restore(path))
        self.changed = asyncio.Event()
        self._seen = self.registry.revision
        self._count()

    @property
    def lease_s(self) -> float:
        return self.registry.lease_s

    def heartbeat(self, record: Record) -> bool:
        """False if the process that sent it has to stop."""
        before = self.registry.get(record.id)
        kept = self.registry.heartbeat(record, self._clock())
        after = self.registry.get(record.id)
        if before is None or after is None or (before.state, before.epoch) != (after.state, after.epoch):
            log.info(
                "replica", extra={"replica": record.id, "epoch": record.epoch, "state": record.state, "kept": kept}
            )
        self._announce()
        return kept

    def serving(self) -> Counter[tuple[str, str]]:
        """Replicas that are ready by (model, revision)."""
        return Counter((r.model, r.revision) for r in self.registry.records() if r.state == "ready")

    def remove(self, replica_id: str) -> None:
        self.registry.remove(replica_id)
        self._announce()

    def message(self, since: int | None = None) -> fleet_pb2.ReplicaSet:
        """All replicas, or what changed after revision ``since``."""
        return to_set(self.registry.view(self._clock(), since), self.registry_id)

    async def run_out_leases(self) -> None:
        """For ever: removes replicas in the moment their lease ends, whatever events came or did not come."""
        while True:
            now = self._clock()
            for replica_id in self.registry.expire(now):
                _expired.inc()
                log.warning("replica_lease_expired", extra={"replica": replica_id})
            self._announce()
            due = self.registry.next_expiry()
            await any_of(self.changed, timeout=None if due is None else max(0.0, due - now) + 0.001)

    async def store(self) -> None:
        """For ever: writes the replicas to disk after a change, at most twice a second."""
        while True:
            changed = self.changed
            await asyncio.to_thread(write_atomically, self._path, self.message().SerializeToString())
            await asyncio.sleep(_STORE_EVERY_S)
            await changed.wait()

    def _announce(self) -> None:
        if self.registry.revision == self._seen:
            return
        self._seen = self.registry.revision
        self._count()
        self.changed.set()
        self.changed = asyncio.Event()

    def _count(self) -> None:
        states = [record.state for record in self.registry.records()]
        for state in _STATES:
            _replicas.labels(state).set(states.count(state))  # type: ignore[arg-type]


def _restore(path: Path) -> list[Record]:
    """Replicas that an earlier process knew; an unreadable file is none, for replicas register again anyway."""
    try:
        return [to_record(replica) for replica in fleet_pb2.ReplicaSet.FromString(path.read_bytes()).replicas]
    except FileNotFoundError:
        return []
    except (OSError, DecodeError, HeadraceError) as error:
        log.error("replicas_not_restored", extra={"path": path, "detail": error})
        return []
