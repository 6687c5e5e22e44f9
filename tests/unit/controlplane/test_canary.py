"""A revision on trial is halted when it does worse, seldom when it does not, and never on too little."""

import random
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_controlplane.canary import Progress, Rule, Tally, chance_of_as_many, judge

RULE = Rule(min_samples=20, significance=0.01, margin=0.01)
FRESH = Progress()


def failing(num_failed: int, num_ended: int) -> Tally:
    return Tally(num_ended=num_ended, num_failed=num_failed)


def test_a_revision_that_fails_more_often_is_halted_and_the_reason_has_the_counts() -> None:
    verdict = judge(failing(8, 20), failing(2, 180), FRESH, RULE)
    assert verdict.halt.startswith("failed attempts: 8 of 20, against 2 of 180 beside it (p = ")


def test_equal_shares_go_on() -> None:
    assert judge(failing(2, 20), failing(18, 180), FRESH, RULE).halt == ""


def test_below_the_minimum_sample_nothing_is_judged() -> None:
    verdict = judge(failing(19, 19), failing(0, 1000), FRESH, RULE)
    assert (verdict.halt, verdict.progress) == ("", FRESH)
    assert judge(failing(20, 20), failing(0, 1000), FRESH, RULE).halt


def test_without_enough_outcomes_beside_it_there_is_nothing_to_compare_with() -> None:
    assert judge(failing(100, 100), failing(0, 19), FRESH, RULE).progress == FRESH


def test_a_larger_share_within_the_margin_is_not_worse_however_certain() -> None:
    trial, beside = failing(15_000, 1_000_000), failing(10_000, 1_000_000)
    assert chance_of_as_many(15_000, 1_000_000, 10_000, 1_000_000) < 1e-100
    assert judge(trial, beside, FRESH, RULE).halt == ""
    assert judge(trial, beside, FRESH, Rule(20, 0.01, 0.004)).halt


@pytest.mark.parametrize(
    ("trial", "beside", "what"),
    [
        (Tally(num_ttft_met=10, num_ttft_missed=30), Tally(num_ttft_met=390, num_ttft_missed=10), "late first texts"),
        (
            Tally(num_ended=40, num_inter_token_met=20, num_inter_token_missed=20),
            Tally(num_ended=400, num_inter_token_met=395, num_inter_token_missed=5),
            "slow responses",
        ),
    ],
)
def test_a_revision_that_misses_its_budgets_is_halted(trial: Tally, beside: Tally, what: str) -> None:
    assert judge(trial, beside, FRESH, RULE).halt.startswith(what)


def test_it_is_looked_at_again_when_enough_is_new() -> None:
    first = judge(failing(0, 20), failing(0, 200), FRESH, RULE).progress
    assert (first.num_looks, first.look_at) == (1, 25)
    assert judge(failing(4, 24), failing(0, 240), first, RULE).progress == first
    assert judge(failing(5, 25), failing(0, 250), first, RULE).progress.num_looks == 2


def test_a_revision_that_goes_bad_late_is_found_soon() -> None:
    """All in all 60 failures of 100,060 are nothing; lately they are everything."""
    progress, good, beside = FRESH, 0, 0
    while good < 100_000:
        good, beside = good + 100, beside + 900
        progress = judge(failing(0, good), failing(0, beside), progress, RULE).progress
    for bad in range(1, 200):
        verdict = judge(failing(bad, good + bad), failing(0, beside + 9 * bad), progress, RULE)
        progress = verdict.progress
        if verdict.halt:
            break
    assert verdict.halt and bad <= 100


def test_a_good_revision_is_seldom_halted_however_often_it_is_looked_at() -> None:
    """150 trials of 1,000 outcomes with the same 5 % of failures: at most the stated share is halted."""
    draws, halted = random.Random(7), 0
    for _ in range(150):
        progress, trial, beside = FRESH, Tally(), Tally()
        for _ in range(100):
            trial += failing(sum(draws.random() < 0.05 for _ in range(10)), 10)
            beside += failing(sum(draws.random() < 0.05 for _ in range(20)), 20)
            verdict = judge(trial, beside, progress, Rule(20, 0.05, 0.0))
            progress = verdict.progress
            if verdict.halt:
                halted += 1
                break
    assert halted <= 7


@given(
    st.integers(1, 30).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    st.integers(1, 30).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
)
def test_the_chance_is_that_of_all_ways_to_draw(side: tuple[int, int], other: tuple[int, int]) -> None:
    (bad, total), (beside_bad, beside_total) = side, other
    all_bad, everything = bad + beside_bad, total + beside_total
    ways = sum(comb(all_bad, x) * comb(everything - all_bad, total - x) for x in range(bad, min(all_bad, total) + 1))
    assert chance_of_as_many(bad, total, beside_bad, beside_total) == pytest.approx(
        ways / comb(everything, total), rel=1e-9
    )


_tallies = st.builds(Tally, *[st.integers(0, 100)] * 6)


@given(st.permutations(range(4)), st.lists(_tallies, min_size=4, max_size=4))
def test_reports_that_come_twice_or_late_change_nothing(order: list[int], steps: list[Tally]) -> None:
    totals = [sum(steps[: i + 1], Tally()) for i in range(4)]
    heard = Tally()
    for i in [*order, *order]:
        heard = heard.at_least(totals[i])
    assert heard == totals[-1]
