"""How long each process of a replica held its devices, and at what price: a file beside the store.

To lose it loses cost reports and nothing else. Used from one thread.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import astuple, replace
from pathlib import Path

from headrace_controlplane.cost import Segment, clip
from headrace_controlplane.fleet.pools import Pool
from headrace_controlplane.registry import Record
from headrace_kit.migrations import migrate

_SCHEMA = """
CREATE TABLE segments (
    replica_id TEXT NOT NULL, epoch TEXT NOT NULL, pool TEXT NOT NULL, model TEXT NOT NULL,
    num_devices INTEGER NOT NULL, price_per_gpu_hour REAL NOT NULL, from_ms INTEGER NOT NULL, to_ms INTEGER NOT NULL,
    PRIMARY KEY (replica_id, epoch, from_ms)) STRICT;
CREATE INDEX segments_by_time ON segments (to_ms);
"""


class Lifetimes:
    """Opens or creates ``path``; raises sqlite3.Error or StartError."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        self._db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        self._db.execute("PRAGMA journal_mode=WAL")
        migrate(self._db, (_SCHEMA,))
        newest = "SELECT *, MAX(from_ms) FROM segments GROUP BY replica_id, epoch"
        found = [Segment(*row[:-1]) for row in self._db.execute(newest)]
        self._open = {(one.replica_id, one.epoch): one for one in found}

    def close(self) -> None:
        self._db.close()

    def observe(self, records: Iterable[Record], pools: Mapping[str, Pool], now_ms: int) -> None:
        """These processes live now. One that was seen before lived all the time between."""
        seen = {}
        for record in records:
            pool = pools.get(record.pool)
            if pool is None:
                continue  # it left the file: it is being stopped
            key = record.id, record.epoch
            seen[key] = _grow(self._open.get(key), record, pool, now_ms)
        self._open = seen
        rows = [astuple(segment) for segment in seen.values()]
        try:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:  # a disk that is full today may have room tomorrow
                self._db.execute("ROLLBACK")

    def between(self, from_ms: int, to_ms: int) -> list[Segment]:
        """What lies in [from_ms, to_ms), cut to it."""
        rows = self._db.execute("SELECT * FROM segments WHERE to_ms > ? AND from_ms < ?", (from_ms, to_ms))
        return clip((Segment(*row) for row in rows.fetchall()), from_ms, to_ms)


def _grow(before: Segment | None, record: Record, pool: Pool, now_ms: int) -> Segment:
    """The segment of a live process up to now; a new price begins a new one where the old one ended."""
    if before is None:
        start = now_ms
    elif (before.num_devices, before.price_per_gpu_hour) == (pool.num_devices, pool.price_per_gpu_hour):
        return replace(before, to_ms=max(before.to_ms, now_ms))
    else:
        start = before.to_ms
    return Segment(
        *(record.id, record.epoch, record.pool, record.model, pool.num_devices, pool.price_per_gpu_hour),
        *(start, max(start, now_ms)),
    )
