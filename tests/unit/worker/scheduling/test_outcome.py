"""What ends a choice, and that a failure stays with its response."""

from __future__ import annotations

import pytest

from headrace_worker.scheduling.blocks import PoolExhausted
from headrace_worker.scheduling.plan import ResultRow, StepResult
from headrace_worker.scheduling.request import Grammar, SamplingParams
from tests.unit.worker.scheduling.fakes import END, Driver, Model, digest_model, expected_tokens, make_limits


def script(*ids: int) -> Model:
    """Draws these ids in order after a prompt of 16, then the end for ever."""
    return lambda context, choice: (ids[len(context) - 16] if len(context) - 16 < len(ids) else END,)


def run_script(ids: tuple[int, ...], max_output: int, **sampling: object) -> tuple[list[int], str]:
    driver = Driver(make_limits(), model=script(*ids))
    outcome = driver.submit(16, max_output, sampling=SamplingParams(**sampling))  # type: ignore[arg-type]
    driver.run()
    return outcome.tokens[0], outcome.finished[0].reason


def test_an_end_token_stops_and_is_counted() -> None:
    assert run_script((1, 2), 10) == ([1, 2, END], "stop")


def test_an_end_token_as_the_last_allowed_is_a_stop() -> None:
    assert run_script((1, 2), 3) == ([1, 2, END], "stop")


def test_the_limit_ends_by_length() -> None:
    assert run_script((1, 2, 3, 4), 3) == ([1, 2, 3], "length")


def test_ignore_eos_runs_to_the_limit_but_not_past_stop_ids() -> None:
    assert run_script((1,), 4, ignore_eos=True) == ([1, END, END, END], "length")
    assert run_script((1, 9), 4, ignore_eos=True, stop_token_ids=frozenset({9})) == ([1, 9], "stop")


def test_min_tokens_overrules_ends_before_it() -> None:
    assert run_script((END, 9, END), 9, min_tokens=2, stop_token_ids=frozenset({9})) == ([END, 9, END], "stop")


def test_tokens_behind_a_stop_in_one_step_are_dropped() -> None:
    driver = Driver(make_limits())
    outcome = driver.submit(16, 10)
    plan = driver.scheduler.plan(0.0)
    assert plan is not None
    row = ResultRow(0, (1, END, 2), ("a", "b", "c"))
    driver.note(driver.scheduler.complete(StepResult(plan.step, (row,)), 0.1))
    assert outcome.tokens[0] == [1, END]
    assert outcome.finished[0].num_generated == 2


@pytest.mark.parametrize("max_output", [2, 10])
def test_a_whole_text_stops_after_its_last_token_only(max_output: int) -> None:
    """Whatever ends tokens may not do yet, and although the limit is reached with it."""
    driver = Driver(make_limits())
    params = SamplingParams(ignore_eos=True, min_tokens=9)
    outcome = driver.submit(16, max_output, sampling=params, grammar=Grammar("choice", '["ab"]'))
    plan = driver.scheduler.plan(0.0)
    assert plan is not None
    driver.note(driver.scheduler.complete(StepResult(plan.step, (ResultRow(0, (1, 2), complete=True),)), 0.1))
    assert (outcome.tokens[0], outcome.finished[0].reason) == ([1, 2], "stop")


def test_several_tokens_in_one_step_are_all_computed_next() -> None:
    driver = Driver(make_limits(), model=lambda context, choice: digest_model(context, choice) * 3)
    outcome = driver.submit(16, 8)
    driver.run()
    assert len(outcome.tokens[0]) == 8
    assert [len(row.token_ids) for plan in driver.plans for row in plan.rows] == [16, 3, 3]


@pytest.mark.parametrize("overlap", [False, True])
def test_an_error_fails_its_own_response_only(overlap: bool) -> None:
    """One poisoned row of three: the others get the tokens that they get alone."""

    def model(context: tuple[int, ...], choice: int) -> tuple[int, ...] | str:
        poisoned = context[0] == 7 and len(context) == 23
        return "no_valid_token" if poisoned else digest_model(context, choice)

    driver = Driver(make_limits(overlap=overlap), model=model, depth=2 if overlap else 1)
    first, second, third = (driver.submit([prompt] * 20, 12) for prompt in (5, 7, 9))
    driver.run()
    assert (second.finished[0].kind, second.finished[0].reason) == ("failed", "no_valid_token")
    assert len(second.tokens[0]) == 3
    assert [first.tokens[0], third.tokens[0]] == [expected_tokens(first, 0), expected_tokens(third, 0)]


def test_an_error_of_one_choice_fails_all_choices_of_its_response() -> None:
    def model(context: tuple[int, ...], choice: int) -> tuple[int, ...] | str:
        return "engine_error" if choice == 1 and len(context) > 20 else digest_model(context, choice)

    driver = Driver(make_limits(), model=model)
    outcome = driver.submit(16, 12, n=3)
    driver.run()
    assert {(finished.kind, finished.reason) for finished in outcome.finished.values()} == {("failed", "engine_error")}


def test_an_error_in_the_middle_of_a_prompt_fails_it_and_caches_nothing() -> None:
    driver = Driver(make_limits(max_chunk_tokens=16))
    outcome = driver.submit(48, 4)
    plan = driver.scheduler.plan(0.0)
    assert plan is not None
    driver.note(driver.scheduler.complete(StepResult(plan.step, (ResultRow(0, error="engine_error"),)), 0.1))
    assert outcome.finished[0].kind == "failed"
    assert driver.scheduler.pool.count_states() == (64, 0, 0, 0)


def refuse_second_page(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the allocator gives one page, refuses one, and gives all others."""
    allocate = driver.scheduler.pool.allocate
    calls: list[int] = []

    def faulty() -> int:
        calls.append(len(calls))
        if len(calls) == 2:
            raise PoolExhausted
        return allocate()

    monkeypatch.setattr(driver.scheduler.pool, "allocate", faulty)


def test_a_page_refused_to_one_sequence_fails_only_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """B108: the allocator refuses one page to sequence 2 of 4."""
    driver = Driver(make_limits())
    outcomes = [driver.submit([index] * 16, 40) for index in range(4)]
    driver.step()
    refuse_second_page(driver, monkeypatch)
    driver.run()
    kinds = [(outcome.finished[0].kind, outcome.finished[0].reason) for outcome in outcomes]
    assert kinds == [("incomplete", "length"), ("failed", "kv_exhausted"), *[("incomplete", "length")] * 2]
    for outcome in (outcomes[0], *outcomes[2:]):
        assert outcome.tokens[0] == expected_tokens(outcome, 0)


def test_a_page_refused_to_a_new_prompt_fails_only_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(make_limits())
    refuse_second_page(driver, monkeypatch)
    failed = driver.submit(48, 4, n=2)
    fine = driver.submit(48, 4, n=2)
    driver.run()
    assert {finished.reason for finished in failed.finished.values()} == {"kv_exhausted"}
    assert fine.tokens == [expected_tokens(fine, 0), expected_tokens(fine, 1)]
    assert set(driver.machine.requests) == {2, 3}


@pytest.mark.parametrize("num_prompt", [16, 20])
def test_a_page_refused_to_one_choice_takes_the_rows_of_the_others_out(
    num_prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(make_limits())
    failed, fine = driver.submit(num_prompt, 8, n=3), driver.submit(10, 8)
    driver.step()
    refuse_second_page(driver, monkeypatch)
    plan = driver.step()
    assert plan is not None
    assert ([row.handle for row in plan.rows], plan.copies, plan.released) == ([3], (), (0, 1, 2))
    driver.run()
    assert {finished.reason for finished in failed.finished.values()} == {"kv_exhausted"}
    assert fine.tokens[0] == expected_tokens(fine, 0)


def test_a_step_without_progress_is_run_again_without_writing() -> None:
    stalls = iter([True, True, False, True, False, False, False, False])
    driver = Driver(make_limits(), model=lambda context, choice: () if next(stalls) else digest_model(context, choice))
    outcome = driver.submit(16, 4)
    driver.run()
    assert outcome.tokens[0] == expected_tokens(outcome, 0)
    assert [row.start for plan in driver.plans for row in plan.rows] == [0, 15, 15, 16, 16, 17, 18]
    written = [row.start + len(row.token_ids) - row.write_from for plan in driver.plans for row in plan.rows]
    assert written == [16, 0, 0, 1, 0, 1, 1]


def test_times_are_those_of_the_caller() -> None:
    driver = Driver(make_limits(max_running=1))
    driver.submit(16, 3)
    second = driver.submit(16, 3)
    driver.run()
    finished = second.finished[0]
    assert finished.queue_s == pytest.approx(0.03)
    assert finished.prefill_s == pytest.approx(0.01)
    assert finished.decode_s == pytest.approx(0.02)
    assert finished.worst_gap_s == pytest.approx(0.01)
