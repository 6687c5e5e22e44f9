"""The statistical class: promised what is likely, in what others leave, and preempted when that is too little."""

from __future__ import annotations

import random

import pytest

from headrace_worker.scheduling.events import Accepted, Progress, Tokens
from headrace_worker.scheduling.limits import LimitsError
from headrace_worker.scheduling.load import report_load
from headrace_worker.scheduling.record import RecordingScheduler, replay
from tests.unit.worker.scheduling.fakes import Driver, Outcome, expected_tokens, hash_block, make_limits

OVERRUN = 0.05


def make_driver(depth: int = 1, **changes: object) -> Driver:
    sizes = {"num_pages": 40, "max_running": 64, "overrun": OVERRUN, "overlap": depth > 1} | changes
    return Driver(make_limits(**sizes), depth=depth)


def teach(driver: Driver, num_tokens: int, times: int = 400) -> None:
    for _ in range(times):
        driver.scheduler._statistical.lengths.observe(num_tokens)


def num_accepted(outcomes: list[Outcome]) -> int:
    return sum(1 for outcome in outcomes if outcome.accepted is not None)


def test_where_the_class_is_off_the_promise_is_whole() -> None:
    driver = make_driver(overrun=0.0)
    teach(driver, 16)
    outcomes = [driver.submit(16, 144, statistical=True) for _ in range(10)]
    driver.step()
    assert num_accepted(outcomes) == 4  # of 10 pages each, in 40
    driver.run()
    assert driver.scheduler.running.num_preempted == 0


def test_what_was_never_seen_is_promised_in_full() -> None:
    driver = make_driver()
    outcomes = [driver.submit(16, 144, statistical=True) for _ in range(10)]
    driver.step()
    assert num_accepted(outcomes) <= 4


def test_more_enter_when_outputs_are_known_to_be_short() -> None:
    driver = make_driver()
    teach(driver, 16)
    outcomes = [driver.submit(16, 144, statistical=True) for _ in range(30)]
    driver.step()
    assert num_accepted(outcomes) > 8


def test_a_default_request_is_promised_in_full_beside_them() -> None:
    driver = make_driver()
    teach(driver, 16)
    outcome = driver.submit(16, 144)
    driver.step()
    assert outcome.accepted is not None and outcome.accepted.promised_pages == 10
    assert driver.scheduler.ledger.num_owed == 9


def test_the_overrun_comes_as_seldom_as_it_was_stated() -> None:
    chance = random.Random(7)

    def draw() -> int:
        return min(400, 1 + int(chance.lognormvariate(3.5, 0.8)))

    driver = make_driver(num_pages=400, max_running=256, max_waiting=256, max_step_tokens=4096, max_chunk_tokens=4096)
    for _ in range(2000):
        driver.scheduler._statistical.lengths.observe(draw())
    outcomes = [driver.submit(16, 400, statistical=True, fair_key=str(key % 7)) for key in range(256)]
    driver.step()
    num = num_accepted(outcomes)
    used = [sum(-(-(16 + draw()) // 16) for _ in range(num)) for _ in range(1000)]
    assert sum(1 for pages in used if pages > 400) / len(used) <= OVERRUN
    # And it is no excuse for leaving much of the pool empty: full promises would take 26 pages each.
    assert sum(used) / len(used) > 0.6 * 400
    assert num > 3 * (400 // 26)


@pytest.mark.parametrize("depth", [1, 2])
def test_when_they_overrun_the_youngest_is_preempted_and_nothing_is_emitted_twice(depth: int) -> None:
    driver = make_driver(depth)
    teach(driver, 16)
    outcomes = [driver.submit(16, 100, statistical=True, n=1 + at % 2) for at in range(12)]
    driver.run()
    assert driver.scheduler.running.num_preempted > 0
    for outcome in outcomes:
        for choice in range(outcome.request.n):
            assert outcome.finished[choice].reason == "length"
            assert outcome.tokens[choice] == expected_tokens(outcome, choice)


def test_the_oldest_is_not_the_one_that_is_preempted() -> None:
    driver = make_driver()
    teach(driver, 16)
    first, *_ = [driver.submit(16, 140, statistical=True) for _ in range(12)]
    while not first.is_over:
        driver.step()
        assert all(group.request is not first.request for group in driver.scheduler.running.suspended)
    assert driver.scheduler.running.num_preempted > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_a_default_request_takes_the_room_of_the_class_at_once_and_is_never_preempted(depth: int) -> None:
    driver = make_driver(depth)
    teach(driver, 100)
    batch = [driver.submit(64, 100, statistical=True, priority=1) for _ in range(4)]
    for _ in range(20):
        driver.step()
    assert num_accepted(batch) == 3
    urgent = driver.submit(160, 320)  # 30 of the 40 pages
    for _ in range(2):
        driver.step()
    assert urgent.accepted is not None and driver.scheduler.running.suspended
    while not urgent.is_over:
        driver.step()
        assert len(urgent.tokens[0]) == 320 or not urgent.is_over
    assert urgent.finished[0].worst_gap_s <= 2 * driver.step_s
    driver.run()
    for outcome in [urgent, *batch]:
        assert outcome.tokens[0] == expected_tokens(outcome, 0)


def test_a_default_request_that_would_not_fit_even_then_preempts_nobody() -> None:
    driver = make_driver()
    teach(driver, 16)
    hard = driver.submit(160, 160)
    batch = driver.submit(16, 100, statistical=True)
    driver.step()
    driver.submit(160, 200)
    for _ in range(5):
        driver.step()
    assert driver.scheduler.running.num_preempted == 0 and not (hard.is_over or batch.is_over)


def test_default_requests_take_the_places_of_the_class_in_the_batch() -> None:
    driver = make_driver(max_running=2)
    teach(driver, 16)
    for _ in range(2):
        driver.submit(16, 100, statistical=True, priority=1)
    driver.step()
    urgent = driver.submit(16, 16)
    driver.step()
    assert urgent.accepted is not None and len(driver.scheduler.running.suspended) == 1


@pytest.mark.parametrize("depth", [1, 2])
def test_a_cancel_ends_a_preempted_request_once(depth: int) -> None:
    driver = make_driver(depth, max_running=2)
    teach(driver, 16)
    batch = [driver.submit(16, 100, statistical=True, priority=1) for _ in range(2)]
    for _ in range(5):
        driver.step()
    driver.submit(16, 50)
    driver.step()
    (group,) = driver.scheduler.running.suspended
    (outcome,) = [each for each in batch if each.request is group.request]
    driver.cancel(outcome)
    driver.step()
    driver.step()
    assert outcome.finished[0].reason == "client"
    assert outcome.tokens[0] == expected_tokens(outcome, 0)[: len(outcome.tokens[0])]
    driver.run()


def test_what_a_preempted_request_had_computed_is_found_in_the_cache() -> None:
    driver = make_driver(max_running=1)
    teach(driver, 16)
    batch = driver.submit(160, 20, statistical=True, priority=1)
    driver.step()
    driver.submit(16, 4)
    driver.run()
    computed = sum(len(row.token_ids) for plan in driver.plans for row in plan.rows if row.handle == 0)
    assert batch.tokens[0] == expected_tokens(batch, 0)
    assert computed < 160 + 20 + 10  # and not the prompt twice


def test_after_a_preemption_there_is_no_second_acceptance_and_no_progress() -> None:
    events: list[object] = []
    driver = make_driver(max_running=1, max_chunk_tokens=16)
    note = driver.note
    driver.note = lambda some: (events.extend(some), note(some))[1]  # type: ignore[method-assign, assignment, func-returns-value]
    teach(driver, 16)
    driver.submit(40, 6, statistical=True, priority=1)
    for _ in range(4):
        driver.step()
    driver.submit(16, 4)
    driver.run()
    kinds = [type(event) for event in events if getattr(event, "handle", None) == 0]
    assert kinds.count(Accepted) == 1
    assert Progress not in kinds[kinds.index(Tokens) :]


def test_load_tells_of_the_class() -> None:
    driver = make_driver(max_running=2)
    teach(driver, 16)
    for _ in range(2):
        driver.submit(16, 100, statistical=True, priority=1)
    driver.step()
    driver.submit(16, 16)
    driver.step()
    load = report_load(driver.scheduler, driver.now)
    assert (load.num_statistical, load.num_suspended, load.num_preempted, load.num_running) == (1, 1, 1, 2)


def test_a_recording_with_preemptions_replays() -> None:
    lines: list[str] = []
    limits = make_limits(num_pages=40, max_running=64, overrun=OVERRUN)
    driver = Driver(limits)
    driver.scheduler = RecordingScheduler(limits, hash_block, lines.append)
    # Learned from requests, not by hand: a replay learns the same.
    for _ in range(30):
        driver.submit(16, 8, statistical=True)
    driver.run()
    for _ in range(12):
        driver.submit(16, 120, statistical=True)
    driver.run()
    assert driver.scheduler.running.num_preempted > 0
    assert all(each.is_same for each in replay(lines))


def test_an_overrun_probability_beyond_a_half_is_refused() -> None:
    with pytest.raises(LimitsError, match="overrun"):
        make_limits(overrun=0.6)


def test_the_class_asks_more_room_for_a_smaller_chance() -> None:
    accepted = []
    for overrun in (0.5, 0.1, 0.001):
        driver = make_driver(
            num_pages=200,
            max_running=200,
            max_waiting=400,
            max_step_tokens=4096,
            max_chunk_tokens=2048,
            overrun=overrun,
        )
        chance = random.Random(3)
        for _ in range(500):
            driver.scheduler._statistical.lengths.observe(1 + int(chance.expovariate(1 / 60)))
        outcomes = [driver.submit(16, 400, statistical=True, fair_key=str(at % 9)) for at in range(100)]
        driver.step()
        accepted.append(num_accepted(outcomes))
    assert accepted == sorted(accepted, reverse=True) and accepted[0] > accepted[-1]
