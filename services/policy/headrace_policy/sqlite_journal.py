"""The usage journal in one SQLite file."""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace_kit.listeners import StartError
from headrace_kit.migrations import migrate
from headrace_policy.journal import JournalError, Row

_SCHEMA = """
CREATE TABLE IF NOT EXISTS settlements (
    tenant TEXT NOT NULL, row_id TEXT NOT NULL, settled_at_ms INTEGER NOT NULL, response_id TEXT NOT NULL,
    cost REAL NOT NULL, correction INTEGER NOT NULL, settlement BLOB NOT NULL,
    PRIMARY KEY (tenant, row_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS settlements_by_time ON settlements (settled_at_ms);
CREATE INDEX IF NOT EXISTS settlements_by_tenant ON settlements (tenant, settled_at_ms);
"""
_PAGE = 500


class SqliteJournal:
    """Raises StartError for a file that cannot be used: another's, a broken one, or one that a newer policy left."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            migrate(self._db, [_SCHEMA])
        except sqlite3.Error as error:
            self._db.close()
            raise StartError(2, f"the usage journal {path} cannot be used: {error}") from error
        except StartError:
            self._db.close()
            raise

    def add(self, rows: Sequence[Row]) -> None:
        values = [
            (r.tenant, r.row_id, r.settled_at_ms, r.response_id, r.cost, r.correction, r.settlement) for r in rows
        ]
        with self._lock:
            try:
                self._db.execute("BEGIN")
                self._db.executemany("INSERT OR IGNORE INTO settlements VALUES (?, ?, ?, ?, ?, ?, ?)", values)
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise JournalError(str(error)) from error

    def between(self, tenant: str, from_ms: int, to_ms: int) -> Iterator[Row]:
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
        try:
            with self._lock:
                found = self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise JournalError(str(error)) from error
        return [
            Row(t, row_id, response, cost, bool(correction), blob)
            for t, row_id, response, cost, correction, blob in found
        ]
