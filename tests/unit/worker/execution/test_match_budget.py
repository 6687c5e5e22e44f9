"""A burst is allowed once, a share for ever."""

from __future__ import annotations

from headrace_worker.execution.match_budget import MatchBudget


def test_a_share_may_be_spent_for_ever() -> None:
    budget = MatchBudget(0.01, 0.25)
    for _ in range(10_000):
        budget.spend(0.01)
        assert budget.next_token()


def test_a_burst_may_be_spent_once() -> None:
    budget = MatchBudget(0.01, 0.25)
    budget.spend(0.25)
    assert budget.next_token()
    budget.spend(0.1)
    assert not budget.next_token()


def test_more_than_the_share_ends_it_soon() -> None:
    budget = MatchBudget(0.01, 0.25)
    for number in range(100):
        budget.spend(0.02)
        if not budget.next_token():
            assert number == 25
            return
    raise AssertionError("it may go on for ever")


def test_cheap_tokens_save_nothing_up() -> None:
    budget = MatchBudget(0.01, 0.25)
    for _ in range(1000):
        assert budget.next_token()
    budget.spend(0.3)
    assert not budget.next_token()
