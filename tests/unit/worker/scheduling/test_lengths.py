"""What is expected of a choice: its limit before anything was seen, then what others did, rather more than less."""

from __future__ import annotations

import random
from statistics import mean, pvariance

from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.scheduling.lengths import LengthDistribution


def learned(lengths: list[int]) -> LengthDistribution:
    distribution = LengthDistribution()
    for length in lengths:
        distribution.observe(length)
    return distribution


def test_what_is_not_known_is_expected_in_full() -> None:
    assert LengthDistribution().remaining(0, 300) == (300.0, 0.0)
    assert LengthDistribution().remaining(120, 300) == (180.0, 0.0)


def test_mean_and_variance_come_near_those_of_what_was_seen() -> None:
    chance = random.Random(1)
    lengths = [min(2000, 1 + int(chance.lognormvariate(5, 0.7))) for _ in range(1500)]
    moments = learned(lengths).remaining(0, 2000)
    assert mean(lengths) <= moments.mean <= 1.2 * mean(lengths)
    assert pvariance(lengths) <= moments.variance <= 1.8 * pvariance(lengths)


def test_a_choice_that_has_outlived_the_short_ones_is_measured_by_the_long_ones() -> None:
    distribution = learned([10] * 900 + [1000] * 100)
    assert distribution.remaining(0, 4096).mean < 150
    assert distribution.remaining(20, 4096).mean > 900


def test_nothing_is_left_at_the_limit() -> None:
    assert learned([5, 50]).remaining(64, 64) == (0.0, 0.0)


def test_a_change_of_traffic_is_learned() -> None:
    distribution = learned([1000] * 5000)
    for _ in range(5000):
        distribution.observe(10)
    assert distribution.remaining(0, 1000).mean < 200


@given(lengths=st.lists(st.integers(1, 5000), max_size=60), num_done=st.integers(0, 6000), limit=st.integers(1, 6000))
def test_what_remains_is_between_nothing_and_the_limit(lengths: list[int], num_done: int, limit: int) -> None:
    moments = learned(lengths).remaining(num_done, limit)
    assert 0 <= moments.mean <= max(0, limit - num_done) + 1e-6
    assert moments.variance >= 0
