"""Cancels end what they name, once, by the second step, and leave nothing behind."""

from __future__ import annotations

import random

import pytest

from headrace_worker.scheduling.audit import audit
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.request import Request, SamplingParams
from tests.unit.worker.scheduling.fakes import Driver, make_limits


def test_a_cancel_before_the_last_output_wins() -> None:
    """B114: between the forward pass and the output of the final step. Cancelled once; pages free at once."""
    driver = Driver(make_limits())
    outcome = driver.submit(16, 1)
    driver.launch()
    driver.cancel(outcome)
    driver.collect()
    assert (outcome.finished[0].kind, outcome.finished[0].num_generated) == ("cancelled", 0)
    assert driver.scheduler.pool.num_held == 0
    assert driver.scheduler.is_idle
    assert outcome.finished[0].num_late_steps == 1


def test_a_cancel_after_the_end_does_nothing() -> None:
    driver = Driver(make_limits())
    outcome = driver.submit(16, 1)
    driver.run()
    driver.cancel(outcome)
    assert driver.launch() is None
    assert outcome.finished[0].kind == "incomplete"
    driver.check()


def test_ten_thousand_cancels_at_random_moments_end_each_response_once() -> None:
    """B114's fuzz: the driver's protocol check fails at a second ending, the audit at a page left behind."""
    chance = random.Random(114)
    driver = Driver(make_limits(num_pages=80, max_waiting=4000, overlap=True), depth=2)
    num_cancels = 0
    while num_cancels < 10_000:
        outcome = driver.submit(chance.randrange(1, 40), chance.randrange(1, 6), fair_key=str(num_cancels % 7))
        for _ in range(chance.randrange(3)):
            chance.choice((driver.launch, driver.step))()
            victim = chance.choice((outcome, chance.choice(list(driver.outcomes.values())[-20:])))
            driver.cancel(victim, reason=chance.choice(("client", "stop", "disconnect")))
            num_cancels += 1
        while len(driver.results) > 2:
            driver.collect()
    driver.run()
    assert all(outcome.is_over for outcome in driver.outcomes.values())
    kinds = {outcome.finished[0].kind for outcome in driver.outcomes.values() if outcome.finished}
    assert kinds == {"cancelled", "incomplete", "completed"}


@pytest.mark.parametrize("depth", [1, 2])
def test_abort_reaches_all_choices(depth: int) -> None:
    """B25: n = 3, 4,096 tokens wanted, ends ignored, gone after five deltas."""
    limits = make_limits(num_pages=800, max_sequence_tokens=8192, overlap=depth > 1)
    driver = Driver(limits, depth=depth)
    outcome = driver.submit(22, 4096, n=3, sampling=SamplingParams(ignore_eos=True))
    while len(outcome.tokens[0]) < 5:
        driver.step()
    driver.cancel(outcome, reason="disconnect")
    num_plans = len(driver.plans)
    driver.step()
    assert {finished.kind for finished in outcome.finished.values()} == {"cancelled"}
    assert len(outcome.finished) == 3
    driver.run()
    assert len(driver.plans) == num_plans
    scheduler = driver.scheduler
    assert (scheduler.running.num_choices, scheduler.pool.num_held, scheduler.ledger.num_promised) == (0, 0, 0)
    assert not scheduler.running.live_handles
    assert not scheduler.running.groups
    assert not scheduler.running.decoding
    # The machine is told at its next plan.
    driver.submit(16, 1)
    driver.run()
    assert set(driver.machine.requests) == {3}


def test_one_choice_of_several_can_be_cancelled() -> None:
    driver = Driver(make_limits())
    outcome = driver.submit(20, 8, n=3)
    driver.step()
    driver.cancel(outcome, choice=1)
    driver.run()
    assert [outcome.finished[choice].kind for choice in range(3)] == ["incomplete", "cancelled", "incomplete"]
    assert len(outcome.tokens[1]) == 1


def test_a_choice_cancelled_in_the_queue_never_runs() -> None:
    driver = Driver(make_limits(max_running=2))
    driver.submit(16, 4, n=2)
    driver.step()
    outcome = driver.submit(16, 4, n=2)
    driver.cancel(outcome, choice=0)
    driver.run()
    assert (outcome.finished[0].kind, outcome.finished[0].num_generated) == ("cancelled", 0)
    assert len(outcome.tokens[1]) == 4


def test_a_stop_found_outside_completes_with_both_counts() -> None:
    driver = Driver(make_limits())
    outcome = driver.submit(16, 50)
    while len(outcome.tokens[0]) < 6:
        driver.step()
    driver.cancel(outcome, choice=0, reason="stop", accepted=4)
    driver.run()
    finished = outcome.finished[0]
    assert (finished.kind, finished.reason) == ("completed", "stop")
    assert (finished.num_generated, finished.accepted_count) == (6, 4)


@pytest.mark.parametrize("num_plans_before", [0, 1, 2, 5])
def test_no_plan_made_after_a_cancel_has_its_rows(num_plans_before: int) -> None:
    driver = Driver(make_limits(overlap=True, max_chunk_tokens=16), depth=2)
    outcome = driver.submit(40, 50)
    other = driver.submit(16, 12)
    for _ in range(num_plans_before):
        driver.step()
    driver.cancel(outcome)
    num_plans = len(driver.plans)
    driver.run()
    assert all(row.handle != 0 for plan in driver.plans[num_plans:] for row in plan.rows)
    assert len(other.tokens[0]) == 12


def test_only_the_named_attempt_is_cancelled() -> None:

    driver = Driver(make_limits())
    scheduler = driver.scheduler
    scheduler.submit(Request(0, "r", 1, (1,), 4), 0.0)
    scheduler.submit(Request(1, "r", 2, (1,), 4), 0.0)
    scheduler.cancel(Cancel("r", attempt=1))
    scheduler.plan(0.0)
    assert [group.request.attempt for group in scheduler.running.groups] == [2]
    assert audit(scheduler) == ()
