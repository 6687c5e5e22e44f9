"""The book of sizes: it is the same after a restart, and without it nothing that runs is stopped."""

from pathlib import Path

from headrace_controlplane.autoscale import ScaleState
from headrace_controlplane.capacity import CapacityMeter
from headrace_controlplane.fleet.pools import Pool
from headrace_controlplane.scale_book import Entry, ScaleBook

POOL = Pool(model="m", min=1, max=10)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "scaling.json"
    book = ScaleBook(path)
    page = book.open("p", POOL, 4, "digest")
    page.state, page.kept, page.meter, page.start_up_s = ScaleState(7), 6, CapacityMeter(123.0), 4.5
    page.decisions.append(Entry(1, 7, "load", "because", False))
    book.save()
    again = ScaleBook(path)
    found = again.open("p", POOL, 0, "digest")
    assert (found.state.desired, found.kept, found.meter.capacity, found.start_up_s) == (7, 6, 123.0, 4.5)
    assert list(found.decisions) == list(page.decisions)
    assert again.size("p", POOL, 0) == 6


def test_time_in_which_nobody_looked_is_no_time_of_low_need(tmp_path: Path) -> None:
    book = ScaleBook(tmp_path / "scaling.json")
    book.open("p", POOL, 4, "digest").state = ScaleState(7, watched_s=12.0, needs=((12.0, 2),))
    book.save()
    assert ScaleBook(tmp_path / "scaling.json").pages["p"].state == ScaleState(7)


def test_a_lost_or_broken_book_keeps_what_runs(tmp_path: Path) -> None:
    assert ScaleBook(tmp_path / "none").size("p", POOL, 6) == 6
    for text in ("", "[]", '{"p": {}}', '{"p": {"kept": "many"}}', '{"p": []}'):
        (tmp_path / "broken").write_text(text)
        assert ScaleBook(tmp_path / "broken").size("p", POOL, 6) == 6


def test_sizes_stay_within_the_bounds_of_the_fleet_file() -> None:
    book = ScaleBook()
    assert (book.size("p", POOL, 0), book.size("p", POOL, 99)) == (1, 10)
    book.open("p", POOL, 8, "digest")
    assert book.size("p", Pool(model="m", min=1, max=5), 8) == 5
    assert book.size("p", Pool(model="m", min=3), 8) == 3


def test_changed_settings_void_measurements_and_not_the_size() -> None:
    book = ScaleBook()
    page = book.open("p", POOL, 4, "old")
    page.meter, page.start_up_s = CapacityMeter(10.0), 3.0
    page = book.open("p", POOL, 9, "new")
    assert (page.kept, page.meter.capacity, page.start_up_s) == (4, None, None)


def test_history_is_bounded() -> None:
    page = ScaleBook().open("p", POOL, 1, "digest")
    for at in range(1000):
        page.decisions.append(Entry(at, 1, "load", "", False))
    assert (len(page.decisions), page.decisions[-1].at_ms) == (100, 999)


def test_only_what_is_worth_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "scaling.json"
    book = ScaleBook(path)
    page = book.open("p", POOL, 4, "digest")
    page.meter.capacity = 100.0
    book.save()
    path.unlink()
    page.meter.capacity = 101.0
    book.save()
    assert not path.exists()
    page.meter.capacity = 110.0
    book.save()
    assert path.exists()


def test_a_pool_that_left_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "scaling.json"
    book = ScaleBook(path)
    book.open("p", POOL, 4, "digest")
    book.save()
    book.keep_only(set())
    book.save()
    assert ScaleBook(path).pages == {}


def test_what_a_disk_does_not_take_is_written_with_the_next_save(tmp_path: Path) -> None:
    """Nobody's scaling waits for it."""
    (tmp_path / "state").write_text("no directory")
    book = ScaleBook(tmp_path / "state" / "scaling.json")
    book.open("p", POOL, 4, "digest")
    book.save()
    (tmp_path / "state").unlink()
    book.save()
    assert ScaleBook(tmp_path / "state" / "scaling.json").pages.keys() == {"p"}
