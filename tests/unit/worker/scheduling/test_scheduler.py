"""The scheduler end to end on a paper machine: what each request gets, and in which steps."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import pytest

from headrace_worker.scheduling.events import Progress
from headrace_worker.scheduling.plan import ResultRow, StepResult
from headrace_worker.scheduling.request import Grammar, HandOff, Request
from headrace_worker.scheduling.scheduler import Scheduler
from tests.unit.worker.scheduling.fakes import END, Driver, digest_model, expected_tokens, hash_block, make_limits

BOUNDARIES = (1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("num_prompt", BOUNDARIES)
def test_chunks_of_any_prompt_give_the_unchunked_tokens(num_prompt: int, overlap: bool) -> None:
    """B100: a page of 16, chunks of 32, 20 tokens out."""
    driver = Driver(make_limits(max_chunk_tokens=32, overlap=overlap), depth=2 if overlap else 1)
    outcome = driver.submit(num_prompt, 20)
    driver.run()
    assert outcome.tokens[0] == expected_tokens(outcome, 0)
    assert outcome.finished[0].kind == "incomplete"
    assert max(len(row.token_ids) for plan in driver.plans for row in plan.rows) == min(32, num_prompt)


@pytest.mark.parametrize("num_prompt", BOUNDARIES)
def test_pages_held_after_k_outputs_leave_out_the_last_id(num_prompt: int) -> None:
    """B100: ceil((p + k - 1) / 16) pages after k outputs; ceil((p + 20) / 16) promised all along."""
    driver = Driver(make_limits(max_chunk_tokens=32))
    outcome = driver.submit(num_prompt, 20)
    while not outcome.is_over:
        driver.step()
        num_output = len(outcome.tokens[0])
        if num_output and not outcome.is_over:
            assert driver.scheduler.pool.num_held == -(-(num_prompt + num_output - 1) // 16)
            assert driver.scheduler.ledger.num_promised == -(-(num_prompt + 20) // 16)
    assert num_output == 20


def test_decodes_go_on_in_every_step_under_endless_prompts() -> None:
    """B110: 30 streams and endless prompts of 4,096 tokens, 512 at a time: nobody misses a step."""
    limits = make_limits(num_pages=2000, max_sequence_tokens=8192, max_running=64, max_step_tokens=1024)
    driver = Driver(replace(limits, max_chunk_tokens=512))
    streams = [driver.submit([index] * 16, 200) for index in range(30)]
    driver.step()
    arrivals = [driver.submit([100] * 4095 + [0], 1)]
    counts = [len(stream.tokens[0]) for stream in streams]
    for turn in range(60):
        if arrivals[-1].is_over:
            arrivals.append(driver.submit([100 + len(arrivals)] * 4096, 1))
        plan = driver.step()
        assert plan is not None
        prompt_tokens = sum(len(row.token_ids) for row in plan.rows) - 30
        assert 0 < prompt_tokens <= 512 or turn == 0
        assert [len(stream.tokens[0]) for stream in streams] == [count + 1 for count in counts]
        counts = [count + 1 for count in counts]
    assert len(arrivals) > 5
    driver.run()


def test_a_full_batch_of_decodes_leaves_a_page_of_prompt() -> None:
    driver = Driver(make_limits(max_running=16, max_step_tokens=32, max_chunk_tokens=32, num_pages=200))
    for index in range(15):
        driver.submit([index] * 16, 100)
    while len(driver.scheduler.running.decoding) < 15:
        driver.step()
    driver.submit([99] * 64, 4)
    plan = driver.step()
    assert plan is not None
    assert [len(row.token_ids) for row in plan.rows] == [1] * 15 + [17]


def test_a_sequence_is_in_one_plan_unless_its_input_is_on_the_device() -> None:
    for overlap in (False, True):
        driver = Driver(make_limits(overlap=overlap), depth=3)
        driver.submit(16, 20)
        first, second, third = driver.launch(), driver.launch(), driver.launch()
        assert first is not None
        assert third is None
        if overlap:
            assert second is not None
            (row,) = second.rows
            assert (row.token_ids, row.placeholder, row.start, row.output_index) == ((-1,), True, 16, 1)
        else:
            assert second is None
        driver.run()


def test_a_choice_with_a_grammar_does_not_overlap_and_its_neighbour_does() -> None:
    driver = Driver(make_limits(overlap=True), depth=2)
    constrained = driver.submit(16, 20, grammar=Grammar("regex", "a*"))
    free = driver.submit(16, 20)
    driver.run()
    placeholders = {row.handle for plan in driver.plans for row in plan.rows if row.placeholder}
    assert placeholders == {free.request.handle}
    assert len(constrained.tokens[0]) == len(free.tokens[0]) == 20


@pytest.mark.parametrize(("limits", "most"), [({}, 1), ({"overlap": True}, 2), ({"depth": 2}, 2), ({"depth": 3}, 3)])
def test_as_many_chunks_of_a_prompt_are_in_flight_as_there_can_be_plans(limits: dict[str, Any], most: int) -> None:
    """A chunk needs the KV of the one before it, which plans in their order have written: no result is waited for."""
    driver = Driver(make_limits(max_chunk_tokens=16, **limits), depth=4)
    outcome = driver.submit(80, 3)
    for _ in range(most):
        assert driver.launch() is not None
    assert driver.launch() is None
    assert [plan.rows[0].start for plan in driver.plans] == [0, 16, 32][:most]
    driver.collect()
    assert driver.launch() is not None
    driver.run()
    assert outcome.tokens[0] == expected_tokens(outcome, 0)


@pytest.mark.parametrize("end", ["cancel", "error"])
def test_a_prompt_that_ends_early_leaves_chunks_in_flight_to_nobody(end: str) -> None:
    driver = Driver(make_limits(max_chunk_tokens=16, depth=3), depth=3)
    outcome, other = driver.submit(80, 3), driver.submit(20, 3)
    for _ in range(3):
        assert driver.launch() is not None
    if end == "cancel":
        driver.cancel(outcome)
    else:
        driver.results[0] = StepResult(0, (ResultRow(driver.plans[0].rows[0].handle, error="engine_error"),))
    driver.run()
    assert [each.reason for each in outcome.finished.values()] == ["client" if end == "cancel" else "engine_error"]
    assert not outcome.tokens[0] and other.tokens[0] == expected_tokens(other, 0)


def test_a_prompt_for_another_replica_is_sent_once_though_its_chunks_follow_each_other() -> None:
    driver = Driver(make_limits(max_chunk_tokens=16, depth=3), depth=3)
    outcome = driver.submit(48, 1, hand_off=HandOff.SEND)
    for _ in range(3):
        assert driver.launch() is not None
    assert driver.launch() is None, "all of the prompt is planned"
    assert [[len(export.pages) for export in plan.exports] for plan in driver.plans] == [[1], [1], [1]]
    driver.run()
    assert [each.reason for each in outcome.finished.values()] == ["prefilled"]


def test_an_overlapped_stop_costs_one_late_step() -> None:
    model = lambda context, choice: (END,) if len(context) == 20 else digest_model(context, choice)  # noqa: E731
    driver = Driver(make_limits(overlap=True), model=model, depth=2)
    outcome = driver.submit(16, 20)
    driver.run()
    assert outcome.finished[0].num_late_steps == 1
    assert outcome.finished[0].num_generated == 5
    assert len(driver.plans) == 6


def test_a_length_end_costs_no_late_step() -> None:
    driver = Driver(make_limits(overlap=True), depth=2)
    outcome = driver.submit(16, 5)
    driver.run()
    assert (outcome.finished[0].num_late_steps, len(driver.plans)) == (0, 5)


def test_results_must_come_in_order() -> None:
    driver = Driver(make_limits(), depth=2)
    driver.submit(16, 4)
    driver.launch()
    driver.submit(16, 4)
    driver.launch()
    driver.results.rotate()
    with pytest.raises(AssertionError, match="step 0 is due"):
        driver.collect()


def test_progress_is_reported_until_the_prompt_is_done() -> None:
    driver = Driver(make_limits(max_chunk_tokens=32))
    driver.submit(80, 1)
    seen: list[int] = []
    while (plan := driver.scheduler.plan(driver.now)) is not None:
        events = driver.scheduler.complete(driver.machine.execute(plan), driver.now)
        seen.extend(event.num_prefilled for event in events if isinstance(event, Progress))
    assert seen == [32, 64]


def test_a_plan_of_256_running_with_2000_waiting_takes_about_a_millisecond() -> None:
    """The budget is scaled by an empty loop that takes 10 ms on the machine it was set on; `bench-engine` measures."""
    limits = make_limits(
        num_pages=256 * 64, max_running=256, max_waiting=4096, max_step_tokens=2048, max_chunk_tokens=1024
    )
    scheduler = Scheduler(limits, hash_block)
    for index in range(2256):
        fields = {"fair_key": str(index % 40), "priority": index % 3, "queue_deadline_s": 1e6, "inter_token_s": 1.0}
        scheduler.submit(Request(index, str(index), 1, (index % 256,) * 200, 800, **fields), 0.0)  # type: ignore[arg-type]
    seconds: list[float] = []
    for turn in range(140):
        start = time.perf_counter()
        plan = scheduler.plan(turn * 0.02)
        seconds.append(time.perf_counter() - start)
        assert plan is not None
        drawn = tuple(ResultRow(handle, (5,)) for row in plan.rows for handle in row.samples)
        scheduler.complete(StepResult(plan.step, drawn), turn * 0.02)
    assert (scheduler.running.num_choices, len(scheduler.room)) == (256, 2000)
    start = time.perf_counter()
    for _ in range(500_000):
        pass
    calibration_s = time.perf_counter() - start
    assert statistics.median(seconds[80:]) < 1.5e-3 * max(1.0, calibration_s / 0.010)


def test_plans_in_flight_share_the_decodes() -> None:
    """Two stages: while one plan's tokens are on their way the other's sequences run, and a newcomer gets its turn."""
    driver = Driver(make_limits(depth=2), depth=2)
    outcomes = [driver.submit(10, 30) for _ in range(4)]
    while len(driver.plans) < 12:
        driver.step()
    latest = [{row.handle for row in plan.rows} for plan in driver.plans[-4:]]
    assert [len(rows) for rows in latest] == [2, 2, 2, 2]
    assert latest[0] == latest[2] and latest[1] == latest[3] and not latest[0] & latest[1]
    outcomes.append(driver.submit(10, 30))
    driver.run()
    assert all(outcome.tokens[0] == expected_tokens(outcome, 0) for outcome in outcomes)
