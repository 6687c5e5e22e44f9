"""Settlements that policy has not confirmed yet, on disk. Knows nothing of what they contain.

A settlement is idempotent by response id for as long as policy remembers it, so that sending one twice, or after a
crash, does no harm. A full disk costs no response its ending: what it does not take is kept in memory and written when
it takes something again; if this process ends before, the lease sweep settles it.
"""

import logging
import sqlite3
from itertools import islice
from pathlib import Path

from headrace_kit.migrations import migrate

log = logging.getLogger(__name__)
# Of a backlog with each call, for nobody else runs meanwhile.
_AT_ONCE = 8
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS settlement (response_id TEXT PRIMARY KEY, request BLOB)",
    "CREATE TABLE IF NOT EXISTS refused (response_id TEXT PRIMARY KEY, request BLOB)",
)


class Outbox:
    """A table of (response id, serialized SettleRequest) in one SQLite file; the calls take about a millisecond."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")  # what a power cut takes, the lease sweep settles
        migrate(self._database, _SCHEMA)
        self._ids = {row[0] for row in self._database.execute("SELECT response_id FROM settlement")}
        self._unwritten: dict[str, bytes] = {}
        self._aside: dict[str, bytes] = {}
        self._undeleted: set[str] = set()

    def put(self, response_id: str, request: bytes) -> None:
        self._ids.add(response_id)
        self._undeleted.discard(response_id)
        self._unwritten[response_id] = request
        self._catch_up()

    def remove(self, response_id: str) -> None:
        if response_id not in self._ids:
            return
        self._ids.discard(response_id)
        self._unwritten.pop(response_id, None)
        self._undeleted.add(response_id)
        self._catch_up()

    def set_aside(self, response_id: str, request: bytes) -> None:
        """Out of the queue and kept for a person: policy will never take it."""
        self._aside[response_id] = request
        self.remove(response_id)

    def refused(self) -> list[str]:
        """Ids that were set aside."""
        return [row[0] for row in self._database.execute("SELECT response_id FROM refused ORDER BY rowid")]

    def oldest(self, limit: int) -> list[tuple[str, bytes]]:
        """Entries in the order in which they were put."""
        most = limit + len(self._undeleted) + len(self._unwritten)
        rows = self._database.execute("SELECT response_id, request FROM settlement ORDER BY rowid LIMIT ?", (most,))
        elsewhere = self._undeleted | self._unwritten.keys()
        written = [row for row in rows.fetchall() if row[0] not in elsewhere]
        return [*written, *self._unwritten.items()][:limit]

    def _catch_up(self) -> None:
        """Writes what is new and some of what the disk did not take before, the oldest first; deletes last."""
        for table, unwritten in (("settlement", self._unwritten), ("refused", self._aside)):
            for response_id, request in list(islice(unwritten.items(), _AT_ONCE)):
                if not self._write(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (response_id, request)):
                    return
                del unwritten[response_id]
        for response_id in list(islice(self._undeleted, _AT_ONCE)):
            if not self._write("DELETE FROM settlement WHERE response_id = ?", (response_id,)):
                return
            self._undeleted.discard(response_id)

    def _write(self, statement: str, values: tuple[object, ...]) -> bool:
        """Whether the disk took it."""
        try:
            self._database.execute(statement, values)
        except sqlite3.OperationalError as error:
            log.error("outbox_not_written", extra={"response_id": values[0], "detail": str(error)})
            return False
        return True

    def ids(self) -> list[str]:
        """Response ids of what waits."""
        return list(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def close(self) -> None:
        self._database.close()
