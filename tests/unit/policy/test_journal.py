"""The usage journal, whichever keeps it: the same rows back, each once, whatever ended the process or the disk."""

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import policy_pb2 as pb
from headrace_kit.errors import HeadraceError
from headrace_kit.listeners import StartError
from headrace_policy.file_journal import FileJournal
from headrace_policy.journal import Journal, JournalError, Row
from headrace_policy.sqlite_journal import SqliteJournal
from tests.unit.policy.fakes import limit
from tests.unit.policy.office import Office

DAY_MS = 86_400_000
Open = Callable[[], Journal]
Offices = Callable[..., Office]


@pytest.fixture(params=["sqlite", "file"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """The journal in its one place, as a process that starts opens it."""
    if request.param == "file":
        return lambda: FileJournal(tmp_path / "journal")
    return lambda: SqliteJournal(tmp_path / "journal.sqlite")


def row(number: int, tenant: str = "acme", at_ms: int | None = None) -> Row:
    at = number if at_ms is None else at_ms
    return Row(tenant, f"{at}-{number % 2}", f"r{number}", number / 3, number % 3 == 0, bytes([number % 256, 0, 10]))


def everything(journal: Journal) -> list[Row]:
    return list(journal.between("", 0, 10**15))


def test_the_same_row_twice_is_one(reopen: Open) -> None:
    journal = reopen()
    rows = [Row("acme", f"{i // 2}-{i % 2}", f"r{i}", 0.5, False, b"x") for i in range(1500)]
    journal.add(rows[:1000])
    journal.add(rows)
    assert everything(journal) == rows
    assert [one.row_id for one in journal.between("acme", 10, 12)] == ["10-0", "10-1", "11-0", "11-1"]
    assert list(journal.between("other", 0, 10**15)) == []
    journal.close()


@given(st.lists(st.tuples(st.integers(0, 4 * DAY_MS), st.sampled_from(["a", "b"])), max_size=20, unique=True))
def test_both_tell_the_same(tmp_path_factory: pytest.TempPathFactory, places: list[tuple[int, str]]) -> None:
    folder = tmp_path_factory.mktemp("both")
    journals: list[Journal] = [FileJournal(folder / "journal"), SqliteJournal(folder / "journal.sqlite")]
    rows = [row(i, tenant, at_ms) for i, (at_ms, tenant) in enumerate(places)]
    for journal in journals:
        journal.add(rows[::2])
        journal.add(rows[1::2])
    for asked in (("", 0, 10**15), ("a", DAY_MS, 3 * DAY_MS), ("b", DAY_MS // 2, DAY_MS), ("", 5, 5)):
        first, second = (list(journal.between(*asked)) for journal in journals)
        assert first == second
        assert {one.row_id for one in first} == {
            one.row_id for one in rows if asked[0] in ("", one.tenant) and asked[1] <= one.settled_at_ms < asked[2]
        }
    for journal in journals:
        journal.close()


def test_what_was_added_is_there_for_the_next_process(reopen: Open) -> None:
    journal = reopen()
    journal.add([row(1), row(2)])
    successor = reopen()  # the first was killed: it closed nothing
    successor.add([row(3)])
    assert everything(successor) == [row(1), row(2), row(3)]
    successor.close()
    journal.close()


@pytest.mark.parametrize("kind", ["sqlite", "file"])
async def test_usage_is_told_from_either(office: Offices, tmp_path: Path, kind: str) -> None:
    journal: Journal = FileJournal(tmp_path / "j") if kind == "file" else SqliteJournal(tmp_path / "j.sqlite")
    calls = office(limit("tpm", 6000), journal=journal)
    for i in range(3):
        await calls.settle((await calls.admit(f"r{i}")).reservation, "completed", i)
    rows = await calls.usage()
    assert [(one.settlement.reservation.response_id, one.settlement.num_output_tokens) for one in rows] == [
        ("r0", 0),
        ("r1", 1),
        ("r2", 2),
    ]
    assert len({one.row_id for one in rows}) == 3


@pytest.mark.parametrize("cut", [1, 40, 10**6])
def test_a_line_that_a_crash_cut_short_was_never_written(tmp_path: Path, cut: int) -> None:
    journal = FileJournal(tmp_path)
    journal.add([row(1)])
    path = tmp_path / "1970-01-01.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-1][:cut])
    assert everything(journal) == [row(1)]
    journal.add([row(2)])
    assert everything(journal) == [row(1), row(2)]


def test_a_disk_that_refuses_in_the_middle_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    journal = FileJournal(tmp_path)
    journal.add([row(1)])
    with monkeypatch.context() as patch, pytest.raises(JournalError, match="No space"):
        patch.setattr(os, "fsync", full)
        journal.add([row(2)])
    assert everything(journal) == [row(1)]
    assert [json.loads(line)["tenant"] for line in (tmp_path / "1970-01-01.jsonl").read_text().splitlines()] == ["acme"]


async def test_rows_wait_while_the_disk_refuses(office: Offices, tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j.sqlite")
    calls = office(journal=journal)
    await calls.settle((await calls.admit("r")).reservation, "completed", 3)
    journal._db.execute("PRAGMA query_only = 1")
    with pytest.raises(JournalError):
        await calls.bookkeeper.flush()
    with pytest.raises(HeadraceError) as refused:
        await calls.usage()
    assert refused.value.reason == "policy_unavailable"
    journal._db.execute("PRAGMA query_only = 0")
    assert len(await calls.usage()) == 1


async def test_a_journal_that_cannot_be_read_is_an_error_and_no_empty_bill(office: Offices, tmp_path: Path) -> None:
    calls = office(journal=FileJournal(tmp_path / "j"))
    await calls.settle((await calls.admit("r")).reservation, "completed", 3)
    await calls.bookkeeper.flush()
    (path,) = (tmp_path / "j").glob("*.jsonl")
    path.write_bytes(b"no line of ours\n" + path.read_bytes())
    with pytest.raises(HeadraceError, match="cannot be read"):
        await calls.usage()


def test_a_file_that_a_newer_policy_left_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    SqliteJournal(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 9")
    database.close()
    with pytest.raises(StartError, match=r"journal\.sqlite is version 9, and this service knows 1 at most"):
        SqliteJournal(path)


def test_a_file_of_before_schemas_were_numbered_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = SqliteJournal(path)
    journal.add([row(1)])
    journal._db.execute("PRAGMA user_version = 0")
    journal.close()
    successor = SqliteJournal(path)
    assert everything(successor) == [row(1)]
    successor.close()


def test_a_file_that_is_no_journal_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(StartError, match=r"journal\.sqlite cannot be used"):
        SqliteJournal(path)


def test_rows_name_their_settlement_for_those_who_read_the_file(tmp_path: Path) -> None:
    settled = pb.SettleRequest(num_output_tokens=7)
    journal = FileJournal(tmp_path)
    journal.add([Row("acme", "0-1", "r", 0.25, False, settled.SerializeToString())])
    (line,) = (tmp_path / "1970-01-01.jsonl").read_text().splitlines()
    assert {name: json.loads(line)[name] for name in ("tenant", "row_id", "response_id", "cost", "correction")} == {
        "tenant": "acme",
        "row_id": "0-1",
        "response_id": "r",
        "cost": 0.25,
        "correction": False,
    }
