"""Budgets in time, with the figures of the design."""

import pytest

from headrace_router.deadlines import Budget, hold_limit_s, queue_deadline

BUDGET = Budget(ttft_s=0.700, max_queue_s=5.0, delivery_reserve_s=0.020)


def test_the_queue_surrenders_after_what_prefill_and_delivery_leave() -> None:
    """700 ms in all and 420 ms of prefill: 280 ms less the reserve."""
    deadline = queue_deadline(BUDGET, 0.420)
    assert deadline.wait_s == pytest.approx(0.260)
    assert not deadline.infeasible


@pytest.mark.parametrize("prefill_s", [0.680, 0.700, 3.0])
def test_a_prompt_that_cannot_meet_its_budget_is_served_and_marked(prefill_s: float) -> None:
    deadline = queue_deadline(BUDGET, prefill_s)
    assert (deadline.wait_s, deadline.infeasible) == (5.0, True)


def test_what_is_left_of_an_earlier_attempt_goes_first() -> None:
    assert queue_deadline(BUDGET, 0.1, left_s=0.05).wait_s == 0.05


def test_the_total_deadline_bounds_every_wait() -> None:
    assert queue_deadline(BUDGET, 0.1, total_left_s=0.2).wait_s == 0.2
    assert queue_deadline(BUDGET, 3.0, total_left_s=1.0).wait_s == 1.0


def test_a_request_is_held_up_to_its_deadline_less_its_prefill() -> None:
    assert hold_limit_s(120.0, 2.0, 60.0) == 58.0
    assert hold_limit_s(120.0, 2.0, 1.0) == 0.0


def test_without_a_deadline_it_is_held_as_long_as_its_pool_says() -> None:
    assert hold_limit_s(120.0, 2.0) == 120.0
