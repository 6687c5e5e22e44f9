"""Settlements on disk survive the process, in order, once each."""

import sqlite3
from pathlib import Path

import pytest

from headrace_gateway.outbox import Outbox


def test_entries_survive_a_restart_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a/outbox.sqlite"
    outbox = Outbox(path)
    outbox.put("r1", b"one")
    outbox.put("r2", b"two")
    outbox.put("r3", b"three")
    outbox.remove("r2")
    outbox.close()
    again = Outbox(path)
    assert again.oldest(10) == [("r1", b"one"), ("r3", b"three")] and len(again) == 2
    assert again.oldest(1) == [("r1", b"one")]


def test_an_id_is_kept_once(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.sqlite")
    outbox.put("r1", b"one")
    outbox.put("r1", b"two")
    outbox.remove("nobody")
    assert outbox.oldest(10) == [("r1", b"two")] and len(outbox) == 1


class FullDisk:
    """A database that takes no writes while it is full."""

    def __init__(self, path: Path) -> None:
        self._database, self.full = sqlite3.connect(path, isolation_level=None), False

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        if self.full and not statement.startswith("SELECT"):
            raise sqlite3.OperationalError("database or disk is full")
        return self._database.execute(statement, values)


def test_what_a_full_disk_did_not_take_is_made_good_once_it_takes_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "outbox.sqlite"
    outbox = Outbox(path)
    outbox.put("confirmed", b"one")
    disk = FullDisk(path)
    monkeypatch.setattr(outbox, "_database", disk)
    disk.full = True
    outbox.put("waits", b"old")
    outbox.remove("confirmed")
    assert outbox.oldest(1) == [("waits", b"old")]
    disk.full = False
    outbox.put("waits", b"new")
    assert outbox.oldest(10) == [("waits", b"new")]
    assert Outbox(path).oldest(10) == [("waits", b"new")], "a successor neither sends twice nor forgets"


def test_what_was_set_aside_is_kept_whatever_the_disk_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "outbox.sqlite"
    outbox = Outbox(path)
    outbox.put("written", b"one")
    disk = FullDisk(path)
    monkeypatch.setattr(outbox, "_database", disk)
    disk.full = True
    outbox.put("unwritten", b"two")
    for response_id, request in outbox.oldest(10):
        outbox.set_aside(response_id, request)
    assert not outbox.oldest(10)
    disk.full = False
    outbox.put("later", b"three")
    again = Outbox(path)
    assert (again.refused(), again.oldest(10)) == (["written", "unwritten"], [("later", b"three")])
