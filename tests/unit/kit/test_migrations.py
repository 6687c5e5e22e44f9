"""A store of any earlier version becomes the newest one, whole steps at a time; a newer one is refused untouched."""

import sqlite3
from pathlib import Path

import pytest

from headrace_kit.listeners import StartError
from headrace_kit.migrations import migrate

STEPS = [
    "CREATE TABLE a (x INTEGER); INSERT INTO a VALUES (1)",
    "ALTER TABLE a ADD COLUMN y INTEGER NOT NULL DEFAULT 7",
    "CREATE TABLE b AS SELECT x + y AS z FROM a",
]


def opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


@pytest.mark.parametrize("start", range(len(STEPS) + 1))
def test_every_earlier_version_becomes_the_newest(tmp_path: Path, start: int) -> None:
    database = opened(tmp_path / "store")
    migrate(database, STEPS[:start])
    migrate(database, STEPS)
    migrate(database, STEPS)
    assert database.execute("SELECT z FROM b").fetchall() == [(8,)]
    database.close()


def test_a_step_that_fails_leaves_the_version_before_it(tmp_path: Path) -> None:
    database = opened(tmp_path / "store")
    with pytest.raises(sqlite3.Error):
        migrate(database, [STEPS[0], "CREATE TABLE c (x); CREATE TABLE a (x)"])
    database.close()
    again = opened(tmp_path / "store")
    assert again.execute("PRAGMA user_version").fetchone() == (1,)
    assert again.execute("SELECT name FROM sqlite_master").fetchall() == [("a",)]
    again.close()


def test_a_newer_store_is_refused_and_untouched(tmp_path: Path) -> None:
    database = opened(tmp_path / "store")
    migrate(database, STEPS)
    with pytest.raises(StartError, match=r"store is version 3, and this service knows 1 at most") as refused:
        migrate(database, STEPS[:1])
    assert refused.value.code == 2
    assert database.execute("PRAGMA user_version").fetchone() == (3,)
    database.close()
