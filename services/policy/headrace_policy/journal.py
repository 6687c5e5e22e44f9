"""The usage journal on disk: every settlement and correction, in SQLite. Knows no Redis.

A row is here before it leaves Redis; the same row again changes nothing.
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace_kit.migrations import migrate

_SCHEMA = """
CREATE TABLE IF NOT EXISTS settlements (
    tenant TEXT NOT NULL, row_id TEXT NOT NULL, settled_at_ms INTEGER NOT NULL, response_id TEXT NOT NULL,
    cost REAL NOT NULL, correction INTEGER NOT NULL, settlement BLOB NOT NULL,
    PRIMARY KEY (tenant, row_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS settlements_by_time ON settlements (settled_at_ms);
CREATE INDEX IF NOT EXISTS settlements_by_tenant ON settlements (tenant, settled_at_ms);
"""
_PAGE = 500


@dataclass(frozen=True)
class Row:
    """One settlement as it was applied; ``settlement`` is a serialized SettleRequest."""

    tenant: str
    row_id: str
    """Place in the tenant's stream: ``<ms>-<n>`` by the clock of Redis."""
    response_id: str
    cost: float
    correction: bool
    settlement: bytes

    @property
    def settled_at_ms(self) -> int:
        return int(self.row_id.partition("-")[0])


class Journal:
    """One file; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        migrate(self._db, [_SCHEMA])

    def add(self, rows: Sequence[Row]) -> None:
        """All of them, durably; raises sqlite3.Error."""
        values = [
            (r.tenant, r.row_id, r.settled_at_ms, r.response_id, r.cost, r.correction, r.settlement) for r in rows
        ]
        with self._lock:
            self._db.execute("BEGIN")
            try:
                self._db.executemany("INSERT OR IGNORE INTO settlements VALUES (?, ?, ?, ?, ?, ?, ?)", values)
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise

    def between(self, tenant: str, from_ms: int, to_ms: int) -> Iterator[Row]:
        """Rows of one tenant (empty = all) settled in [from_ms, to_ms), in the order of time."""
        after = (from_ms, "", "")
        while rows := self._page(tenant, after, to_ms):
            yield from rows
            after = (rows[-1].settled_at_ms, rows[-1].tenant, rows[-1].row_id)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _page(self, tenant: str, after: tuple[int, str, str], to_ms: int) -> list[Row]:
        query = (
            "SELECT tenant, row_id, response_id, cost, correction, settlement FROM settlements "
            "WHERE settled_at_ms >= ? AND (settled_at_ms, tenant, row_id) > (?, ?, ?) AND settled_at_ms < ? "
            f"{'AND tenant = ?' if tenant else ''} ORDER BY settled_at_ms, tenant, row_id LIMIT ?"
        )
        values = (after[0], *after, to_ms, *((tenant,) if tenant else ()), _PAGE)
        with self._lock:
            found = self._db.execute(query, values).fetchall()
        return [
            Row(t, row_id, response, cost, bool(correction), blob)
            for t, row_id, response, cost, correction, blob in found
        ]
