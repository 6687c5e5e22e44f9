"""Settlements on disk survive the process, in order, once each."""

from pathlib import Path

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
