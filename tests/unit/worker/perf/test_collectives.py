"""All-reduce against the measured H100 table, and its limits."""

import csv
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.perf.cards import card_named
from headrace_worker.perf.collectives import all_reduce_time_s
from headrace_worker.perf.efficiency import H100_FIT

TABLE = Path(__file__).parents[4] / "benchmarks" / "data" / "roofline" / "h100_all_reduce.csv.gz"
H100 = card_named("h100-80gib")


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_it_is_within_a_quarter_of_every_measured_size(num_ranks: int) -> None:
    fastest: dict[int, float] = {}
    with gzip.open(TABLE, "rt") as lines:
        for row in csv.DictReader(lines):
            if int(row["num_gpus"]) == num_ranks:
                size, seconds = int(row["num_bytes"]), float(row["latency_ms"]) / 1e3
                fastest[size] = min(seconds, fastest.get(size, seconds))
    assert len(fastest) > 20
    for size, seconds in fastest.items():
        assert all_reduce_time_s(size, num_ranks, H100, H100_FIT.collective) == pytest.approx(seconds, rel=0.25)


@given(st.integers(0, 2**30), st.integers(0, 2**30), st.sampled_from([2, 3, 4, 8]))
def test_larger_messages_never_take_less_time(size: int, more: int, num_ranks: int) -> None:
    small = all_reduce_time_s(size, num_ranks, H100, H100_FIT.collective)
    assert all_reduce_time_s(size + more, num_ranks, H100, H100_FIT.collective) >= small * (1 - 1e-9)


def test_one_rank_has_nobody_to_talk_to() -> None:
    assert all_reduce_time_s(2**20, 1, H100, H100_FIT.collective) == 0
