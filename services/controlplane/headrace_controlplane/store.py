"""The control plane's memory in one SQLite file: versions with their files, keys, cards, trials. Knows no fleet schema.

Every public method is one transaction (or part of the caller's ``with store.transaction()``), durable when it returns:
a killed process loses nothing that was answered. Used from one thread.
"""

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from headrace_controlplane.full_disk import told_when_full
from headrace_controlplane.keys import StoredKey
from headrace_kit.listeners import StartError
from headrace_kit.migrations import migrate

_FIRST = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE files (hash BLOB PRIMARY KEY, fleet_yaml TEXT NOT NULL) STRICT;
CREATE TABLE versions (
    version INTEGER PRIMARY KEY, created_at_s INTEGER NOT NULL, kind TEXT NOT NULL, comment TEXT NOT NULL,
    file_hash BLOB NOT NULL REFERENCES files, hash BLOB NOT NULL) STRICT;
CREATE TABLE sections (
    version INTEGER NOT NULL REFERENCES versions, audience TEXT NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (version, audience)) STRICT;
CREATE TABLE keys (
    key_id TEXT PRIMARY KEY, hash BLOB NOT NULL, tenant TEXT NOT NULL, project TEXT NOT NULL, models TEXT NOT NULL,
    expires_at_s INTEGER NOT NULL, revoked INTEGER NOT NULL, created_at_s INTEGER NOT NULL, slo_class TEXT NOT NULL,
    scopes TEXT NOT NULL) STRICT;
CREATE TABLE cards (
    model TEXT NOT NULL, revision TEXT NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (model, revision)) STRICT;
CREATE TABLE models (name TEXT PRIMARY KEY, added_at_s INTEGER NOT NULL) STRICT;
"""
_TRIALS = """
CREATE TABLE trials (
    model TEXT NOT NULL, revision TEXT NOT NULL, source TEXT NOT NULL, trial INTEGER NOT NULL, halted TEXT NOT NULL,
    state TEXT NOT NULL, PRIMARY KEY (model, revision)) STRICT;
"""
SCHEMA = (_FIRST, _TRIALS)
"""Steps, only ever appended to."""


class StoreError(Exception):
    """The file cannot be used; one sentence for the operator."""


@dataclass(frozen=True)
class Version:
    """One row of the history; ``file_hash`` names its fleet file, ``hash`` is over all sections."""

    version: int
    created_at_s: int
    kind: str
    comment: str
    file_hash: bytes
    hash: bytes


@dataclass(frozen=True)
class TrialRow:
    """A revision on trial, or one that was halted once; ``state`` is JSON of who keeps it."""

    model: str
    revision: str
    source: str
    trial: int
    """Version that began it."""
    halted: str = ""
    """Why it was halted; empty: it was not."""
    state: str = "{}"


class Store:
    """Opens or creates ``path``; raises StoreError."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("PRAGMA foreign_keys=ON")
            migrate(self._db, SCHEMA)
        except (sqlite3.Error, StartError) as error:
            raise StoreError(f"cannot use {path}: {error}") from error

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing of what is done inside; may be nested. Raises HeadraceError where the disk takes no more."""
        if self._db.in_transaction:
            yield
            return
        with told_when_full():
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:  # it failed, and a full disk may have ended it by itself
                    self._db.execute("ROLLBACK")

    def fact(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def set_fact(self, name: str, value: str) -> None:
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def add_file(self, fleet_yaml: str) -> bytes:
        """Stores a fleet file once, however many versions have it; returns its SHA-256."""
        digest = hashlib.sha256(fleet_yaml.encode()).digest()
        with self.transaction():
            self._db.execute("INSERT OR IGNORE INTO files VALUES (?, ?)", (digest, fleet_yaml))
        return digest

    def file(self, file_hash: bytes) -> str:
        """A file that some version has."""
        text: str = self._db.execute("SELECT fleet_yaml FROM files WHERE hash = ?", (file_hash,)).fetchone()[0]
        return text

    def add_version(self, row: Version, sections: Mapping[str, bytes]) -> None:
        """Stores a version, which must be newer than all others; sections of older ones are dropped."""
        newest = self.newest()
        assert newest is None or row.version > newest.version, f"version {row.version} is not new"
        with self.transaction():
            self._db.execute("DELETE FROM sections")
            self._db.execute(
                "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?)",
                (row.version, row.created_at_s, row.kind, row.comment, row.file_hash, row.hash),
            )
            rows = [(row.version, audience, content) for audience, content in sections.items()]
            self._db.executemany("INSERT INTO sections VALUES (?, ?, ?)", rows)

    def newest(self) -> Version | None:
        rows = self.history(1)
        return rows[0] if rows else None

    def version(self, version: int) -> Version | None:
        row = self._db.execute("SELECT * FROM versions WHERE version = ?", (version,)).fetchone()
        return Version(*row) if row else None

    def history(self, limit: int) -> list[Version]:
        """Newest first."""
        rows = self._db.execute("SELECT * FROM versions ORDER BY version DESC LIMIT ?", (limit,))
        return [Version(*row) for row in rows]

    def sections(self, version: int) -> dict[str, bytes]:
        """Sections by audience of the newest version; empty for an older one."""
        return dict(self._db.execute("SELECT audience, content FROM sections WHERE version = ?", (version,)).fetchall())

    def add_key(self, key: StoredKey) -> None:
        lists = (json.dumps(key.models), json.dumps(key.scopes))
        row = (
            *(key.key_id, key.hash, key.tenant, key.project, lists[0], key.expires_at_s),
            *(int(key.revoked), key.created_at_s, key.slo_class, lists[1]),
        )
        with self.transaction():
            self._db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def list_keys(self, tenant: str = "") -> list[StoredKey]:
        """Keys of one tenant or of all, oldest first."""
        rows = self._db.execute(
            "SELECT * FROM keys WHERE ? IN ('', tenant) ORDER BY created_at_s, key_id", (tenant,)
        ).fetchall()
        return [_key(row) for row in rows]

    def key(self, key_id: str) -> StoredKey | None:
        row = self._db.execute("SELECT * FROM keys WHERE key_id = ?", (key_id,)).fetchone()
        return _key(row) if row else None

    def revoke_key(self, key_id: str) -> None:
        with self.transaction():
            self._db.execute("UPDATE keys SET revoked = 1 WHERE key_id = ?", (key_id,))

    def cards(self) -> dict[tuple[str, str], bytes]:
        """Digest of the model card by (model, revision)."""
        rows = self._db.execute("SELECT model, revision, digest FROM cards").fetchall()
        return {(model, revision): digest for model, revision, digest in rows}

    def set_card(self, model: str, revision: str, digest: bytes) -> None:
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO cards VALUES (?, ?, ?)", (model, revision, digest))

    def trials(self) -> list[TrialRow]:
        return [TrialRow(*row) for row in self._db.execute("SELECT * FROM trials ORDER BY model, revision")]

    def set_trial(self, row: TrialRow) -> None:
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?)", astuple(row))

    def drop_trial(self, row: TrialRow) -> None:
        with self.transaction():
            self._db.execute("DELETE FROM trials WHERE model = ? AND revision = ?", (row.model, row.revision))

    def models_added(self) -> dict[str, int]:
        """When each model was first in a fleet, Unix seconds."""
        return dict(self._db.execute("SELECT name, added_at_s FROM models").fetchall())

    def add_model(self, name: str, now_s: int) -> None:
        """Keeps the first time."""
        with self.transaction():
            self._db.execute("INSERT OR IGNORE INTO models VALUES (?, ?)", (name, now_s))


def _key(row: tuple[str, bytes, str, str, str, int, int, int, str, str]) -> StoredKey:
    key_id, digest, tenant, project, models, expires_at_s, revoked, created_at_s, slo_class, scopes = row
    return StoredKey(
        *(key_id, digest, tenant, project, tuple(json.loads(models)), expires_at_s),
        *(bool(revoked), created_at_s, slo_class, tuple(json.loads(scopes))),
    )
