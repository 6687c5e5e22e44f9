"""Leaky buckets as arithmetic: B54, B55, B57, exact waits, and what applies to whom."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_policy.limits import (
    DAY_MS,
    MINUTE_MS,
    NEVER,
    SLACK,
    Caller,
    Limit,
    applicable,
    leaked,
    settled_level,
    wait_ms,
)

CALLER = Caller("acme", "blue", "k1", "m")


def test_a_day_later_nothing_is_left_of_yesterday() -> None:
    limit = Limit("tpm", 120_000, "tenant")
    assert leaked(70_000, limit.rate, DAY_MS) == 0
    assert wait_ms(limit, 0, 70_000) == 0


def test_each_limit_falls_by_itself() -> None:
    requests, tokens = Limit("rpm", 500, "tenant"), Limit("tpm", 200, "tenant")
    assert leaked(1, requests.rate, MINUTE_MS) == 0
    level = leaked(150, tokens.rate, MINUTE_MS)
    assert (level, wait_ms(tokens, level, 60)) == (0, 0)


def test_no_window_can_be_crossed() -> None:
    limit, level, at, admitted = Limit("rpm", 100, "tenant"), 0.0, 59_900, 0
    for now in [59_900] * 100 + [60_100] * 100:
        level, at = leaked(level, limit.rate, now - at), now
        if wait_ms(limit, level, 1) == 0:
            level, admitted = level + 1, admitted + 1
    assert admitted == 100


def test_a_changed_limit_keeps_what_was_used() -> None:
    before, after = Limit("tpm", 1000, "tenant"), Limit("tpm", 100, "tenant")
    assert wait_ms(before, 90, 20) == 0
    assert wait_ms(after, 90, 20) == pytest.approx(10 / 100 * MINUTE_MS)


@given(st.floats(1, 1e9), st.floats(0, 1), st.floats(0, 1), st.sampled_from(["rpm", "tpm", "tokens_per_day"]))
def test_a_wait_is_exact(capacity: float, full: float, share: float, name: str) -> None:
    limit = Limit(name, capacity, "tenant")
    level, units = capacity * full, capacity * share
    wait = math.ceil(wait_ms(limit, level, units))
    assert wait_ms(limit, leaked(level, limit.rate, wait), units) == 0
    early = 1.001 + SLACK * capacity / limit.rate  # a millisecond, or what rounding is forgiven
    if wait > early:
        assert wait_ms(limit, leaked(level, limit.rate, wait - early), units) > 0


def test_more_than_the_whole_limit_never_fits() -> None:
    assert wait_ms(Limit("tpm", 100, "tenant"), 0, 101) == NEVER
    assert wait_ms(Limit("concurrency", 0, "tenant"), 0, 1) == NEVER


def test_a_clock_that_runs_backwards_leaks_nothing() -> None:
    assert leaked(50, 1, -10_000) == 50
    assert settled_level(50, 1, -30, -10_000) == 20


def test_units_that_leaked_are_not_given_back_again() -> None:
    rate = Limit("tpm", 6000, "tenant").rate
    assert settled_level(100, rate, -30, 100) == 80
    assert settled_level(100, rate, -30, 300) == 100
    assert settled_level(100, rate, 30, 300) == 130


def test_one_limit_a_name_and_scope_applies_and_the_one_that_names_its_subject_wins() -> None:
    limits = [
        Limit("rpm", 1, "tenant"),
        Limit("rpm", 2, "key", "k1"),
        Limit("rpm", 3, "key"),
        Limit("rpm", 4, "key", "other"),
        Limit("tpm", 5, "model"),
        Limit("tpm", 6, "project", "green"),
    ]
    assert applicable(limits, CALLER) == [
        Limit("rpm", 1, "tenant"),
        Limit("rpm", 2, "key", "k1"),
        Limit("tpm", 5, "model", "m"),
    ]


def test_a_caller_without_project_has_no_project_limit() -> None:
    assert applicable([Limit("rpm", 1, "project")], Caller("acme", "", "k1", "m")) == []
