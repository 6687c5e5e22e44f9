"""Which replicas live, by leases and epochs. Pure: the clock is an argument. Knows no stream, no store, no contract.

A replica lives until its lease runs out or it says that it left; events that get lost change nothing of that. A new
epoch of an id replaces the old one, and a process that still speaks for a replaced epoch is told to stop.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

State = Literal["loading", "warming", "ready", "degraded", "draining", "gone"]
_KEPT_RETIRED = 8
_KEPT_REMOVALS = 1000


@dataclass(frozen=True)
class Record:
    """One replica as its last heartbeat told it."""

    id: str
    epoch: str
    endpoint: str
    pool: str = ""
    model: str = ""
    revision: str = ""
    state: State = "loading"
    role: str = "both"
    http: str = ""
    card_digest: bytes = b""
    fingerprint: bytes = b""
    domains: tuple[str, ...] = ()
    snapshot_version: int = 0
    progress: str = ""
    pid: int = 0


@dataclass(frozen=True)
class View:
    """What a watcher needs: everything (``full``), or what changed since a revision."""

    revision: int
    full: bool
    records: tuple[tuple[Record, float], ...]
    """Each record with the seconds left of its lease."""
    removed: tuple[str, ...] = ()


@dataclass
class _Entry:
    record: Record
    lease_until: float
    changed_at: int
    retired: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_RETIRED))


class Registry:
    """``revision`` rises by one with each change; a renewed lease alone is none. Times in seconds, monotonic."""

    def __init__(self, *, lease_s: float, now: float, restored: Iterable[Record] = ()) -> None:
        """``restored`` records, of a control plane that is no more, get one full period to be heard of again."""
        assert lease_s > 0, "a lease has a length"
        self.lease_s, self.revision = lease_s, 0
        self._entries: dict[str, _Entry] = {}
        self._removals: deque[tuple[int, str]] = deque(maxlen=_KEPT_REMOVALS)
        self._forgotten_up_to = 0
        for record in restored:
            self.heartbeat(record, now)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, replica_id: str) -> Record | None:
        entry = self._entries.get(replica_id)
        return entry.record if entry else None

    def records(self) -> tuple[Record, ...]:
        return tuple(entry.record for entry in self._entries.values())

    def heartbeat(self, record: Record, now: float) -> bool:
        """Renews the lease; False if this epoch was replaced by a newer one and its process has to stop."""
        entry = self._entries.get(record.id)
        if entry is not None and record.epoch in entry.retired:
            return False
        if record.state == "gone":
            if entry is not None and entry.record.epoch == record.epoch:
                self._remove(record.id)
            return True
        if entry is None:
            entry = self._entries[record.id] = _Entry(record, 0.0, self._next_revision())
        elif entry.record != record:
            if entry.record.epoch != record.epoch:
                entry.retired.append(entry.record.epoch)
            entry.record, entry.changed_at = record, self._next_revision()
        entry.lease_until = now + self.lease_s
        return True

    def expire(self, now: float) -> list[str]:
        """Removes every replica whose lease ran out; returns their ids."""
        late = [replica_id for replica_id, entry in self._entries.items() if entry.lease_until <= now]
        for replica_id in late:
            self._remove(replica_id)
        return late

    def next_expiry(self) -> float | None:
        """When ``expire`` may have something to do."""
        return min((entry.lease_until for entry in self._entries.values()), default=None)

    def remove(self, replica_id: str) -> None:
        """Removes a replica that is known to be dead; an unknown one is no error."""
        if replica_id in self._entries:
            self._remove(replica_id)

    def view(self, now: float, since: int | None = None) -> View:
        """Everything, or what changed after revision ``since`` as far as that is still known."""
        full = since is None or since < self._forgotten_up_to or since > self.revision
        base = 0 if since is None or full else since
        live = tuple((e.record, max(0.0, e.lease_until - now)) for e in self._entries.values() if e.changed_at > base)
        if full:
            return View(self.revision, True, live)
        removed = dict.fromkeys(name for at, name in self._removals if at > base and name not in self._entries)
        return View(self.revision, False, live, tuple(removed))

    def _next_revision(self) -> int:
        self.revision += 1
        return self.revision

    def _remove(self, replica_id: str) -> None:
        del self._entries[replica_id]
        if len(self._removals) == _KEPT_REMOVALS:
            self._forgotten_up_to = self._removals[0][0]
        self._removals.append((self._next_revision(), replica_id))
