"""How long processes held their devices, over restarts of the control plane and changes of price."""

import sqlite3
from pathlib import Path

import pytest

from headrace_controlplane.cost import Segment
from headrace_controlplane.fleet.pools import Pool
from headrace_controlplane.lifetimes import Lifetimes
from headrace_controlplane.registry import Record

RECORD = Record("w0", "e1", "127.0.0.1:1", pool="gpu", model="m")
POOLS = {"gpu": Pool(model="m", tp=2, price_per_gpu_hour=3.0)}


def test_one_process_is_one_segment_over_a_restart_of_ours(tmp_path: Path) -> None:
    first = Lifetimes(tmp_path / "l.db")
    first.observe([RECORD], POOLS, 1000)
    first.observe([RECORD], POOLS, 2000)
    first.close()
    second = Lifetimes(tmp_path / "l.db")
    second.observe([RECORD], POOLS, 90_000)
    assert second.between(0, 100_000) == [Segment("w0", "e1", "gpu", "m", 2, 3.0, 1000, 90_000)]
    second.close()


def test_a_new_epoch_and_a_new_price_begin_new_segments(tmp_path: Path) -> None:
    kept = Lifetimes(tmp_path / "l.db")
    kept.observe([RECORD], POOLS, 0)
    kept.observe([RECORD], POOLS, 1000)
    dearer = {"gpu": Pool(model="m", tp=2, price_per_gpu_hour=4.0)}
    kept.observe([RECORD], dearer, 2000)
    kept.observe([Record("w0", "e2", "127.0.0.1:1", pool="gpu", model="m")], dearer, 3000)
    kept.observe([Record("w0", "e2", "127.0.0.1:1", pool="gpu", model="m")], dearer, 4000)
    found = [(one.epoch, one.price_per_gpu_hour, one.from_ms, one.to_ms) for one in kept.between(0, 9000)]
    assert sorted(found) == [("e1", 3.0, 0, 1000), ("e1", 4.0, 1000, 2000), ("e2", 4.0, 3000, 4000)]
    kept.close()


def test_a_range_is_cut_out(tmp_path: Path) -> None:
    kept = Lifetimes(tmp_path / "l.db")
    kept.observe([RECORD], POOLS, 0)
    kept.observe([RECORD], POOLS, 10_000)
    assert [(one.from_ms, one.to_ms) for one in kept.between(2000, 3000)] == [(2000, 3000)]
    assert kept.between(10_000, 20_000) == []
    kept.close()


def test_a_clock_that_was_set_back_takes_nothing_away(tmp_path: Path) -> None:
    kept = Lifetimes(tmp_path / "l.db")
    for now_ms in (1000, 5000, 2000):
        kept.observe([RECORD], POOLS, now_ms)
    assert [(one.from_ms, one.to_ms) for one in kept.between(0, 9000)] == [(1000, 5000)]
    kept.close()


def test_after_a_full_disk_it_goes_on(tmp_path: Path) -> None:
    kept = Lifetimes(tmp_path / "l.db")
    kept.observe([RECORD], POOLS, 1000)
    (num_pages,) = kept._db.execute("PRAGMA page_count").fetchone()
    kept._db.execute(f"PRAGMA max_page_count = {num_pages}")
    crowd = [Record(f"w{number}", "e1", "127.0.0.1:1", pool="gpu", model="m") for number in range(1000)]
    with pytest.raises(sqlite3.OperationalError, match="full"):
        kept.observe(crowd, POOLS, 2000)
    kept._db.execute(f"PRAGMA max_page_count = {100 * num_pages}")
    kept.observe(crowd, POOLS, 3000)
    assert len(kept.between(2000, 4000)) == 1000
    kept.close()
