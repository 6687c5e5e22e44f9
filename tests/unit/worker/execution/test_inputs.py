"""A plan as flat arrays: where rows write, what they see, which of them draw."""

from __future__ import annotations

from headrace_worker.execution.inputs import flatten
from headrace_worker.scheduling.plan import Plan, PlanRow


def test_rows_write_where_their_position_says() -> None:
    prompt = PlanRow(1, (10, 11, 12), 15, (4, 9), (1, 2), 0, 15)
    decode = PlanRow(7, (20,), 32, (1, 2, 3), (7,), 5, 32)
    inputs = flatten(Plan(0, (prompt, decode)), 16)
    assert inputs.token_ids == [10, 11, 12, 20]
    assert inputs.positions == [15, 16, 17, 32]
    assert inputs.slots == [4 * 16 + 15, 9 * 16, 9 * 16 + 1, 3 * 16]
    assert (inputs.query_lens, inputs.kv_lens) == ([3, 1], [18, 33])
    assert inputs.sample_rows == [2, 2, 3]
    assert inputs.sample_handles == [1, 2, 7]
    assert inputs.sample_indices == [0, 0, 5]


def test_a_full_hit_computes_its_last_token_and_writes_nothing() -> None:
    inputs = flatten(Plan(0, (PlanRow(1, (5,), 31, (8, 9), (1,), 0, 32),)), 16)
    assert (inputs.positions, inputs.slots, inputs.kv_lens) == ([31], [0], [32])


def test_the_middle_of_a_prompt_draws_nothing() -> None:
    inputs = flatten(Plan(0, (PlanRow(1, (5, 6), 0, (8,), (), 0, 0),)), 16)
    assert inputs.sample_rows == []


def test_a_token_that_is_still_on_the_device_is_named_by_who_draws_it() -> None:
    known = PlanRow(7, (20,), 32, (1, 2, 3), (7,), 5, 32)
    drawn = PlanRow(8, (-1,), 16, (4, 5), (8,), 3, 16, True)
    inputs = flatten(Plan(1, (known, drawn)), 16)
    assert (inputs.placeholder_rows, inputs.placeholder_handles) == ([1], [8])
    assert inputs.token_ids == [20, 0]
    assert inputs.positions == [32, 16]
