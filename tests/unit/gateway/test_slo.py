"""Who met their class, what share did, and how fast the error budget burns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_gateway.slo import Budgets, Experience, Met, Track, judge

CHAT = Budgets("chat", ttft_s=0.7, inter_token_s=0.1, target=0.9)
GOOD, BAD = Met(ttft=True, inter_token=True, good=True), Met(ttft=False, inter_token=True, good=False)


@pytest.mark.parametrize(
    "got, ttft, inter_token, good",
    [
        (Experience(0.7, 100, 1), True, True, True),
        (Experience(0.7001, 100, 0), False, True, False),
        (Experience(0.5, 100, 2), True, False, False),
        (Experience(None, 0, 0), False, True, False),
        (Experience(0.5, 10, 0, failed=True), True, True, False),
        (Experience(0.5, 0, 0), True, True, True),
    ],
)
def test_a_class_is_met_at_its_edges_and_by_all_but_one_gap_in_a_hundred(
    got: Experience, ttft: bool, inter_token: bool, good: bool
) -> None:
    assert judge(CHAT, got) == Met(ttft, inter_token, good)


def test_a_class_without_budgets_is_met_by_whatever_ends_well() -> None:
    assert judge(Budgets("none"), Experience(3600.0, 10, 10)) == GOOD


@pytest.mark.parametrize(
    "met, broken",
    [(GOOD, ""), (BAD, "ttft"), (Met(True, False, False), "inter_token"), (Met(False, False, False), "ttft")],
)
def test_the_budget_that_was_broken_first_is_named(met: Met, broken: str) -> None:
    assert met.broken == broken


def test_attainment_goodput_and_burn_are_those_of_the_window() -> None:
    track = Track(CHAT)
    for second in range(60):
        track.add(BAD if second < 15 else GOOD, 1000.0 + second)
    got = track.over(300.0, 1060.0)
    assert (got.num, got.ttft, got.inter_token) == (60, 0.75, 1.0)
    assert got.goodput_per_s == 45 / 300
    assert got.burn == pytest.approx(2.5)  # a quarter failed where a tenth may
    assert track.over(300.0, 1060.0 + 400).num == 0 and track.over(3600.0, 1060.0 + 400).num == 60


def test_without_responses_nothing_is_attained_and_nothing_burns() -> None:
    got = Track(CHAT).over(300.0, 0.0)
    assert (got.num, got.ttft, got.inter_token, got.goodput_per_s, got.burn) == (0, None, None, 0.0, 0.0)


@given(st.lists(st.tuples(st.floats(0, 5000), st.booleans()), max_size=200))
def test_no_more_than_an_hour_is_kept(added: list[tuple[float, bool]]) -> None:
    track = Track(CHAT)
    for at, good in sorted(added):
        track.add(GOOD if good else BAD, at)
    now = max((at for at, _ in added), default=0.0)
    recent = [good for at, good in added if at > now - 3600]
    got = track.over(3600.0, now)
    assert len(recent) <= got.num <= len([at for at, _ in added if at > now - 3620])
    assert len(track._bins) <= 362
