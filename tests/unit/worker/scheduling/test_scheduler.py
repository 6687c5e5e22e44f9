"""The scheduler end to end on a paper machine: what each request gets, and in which steps."""

from __future__ import annotations

import pytest

from tests.unit.worker.scheduling.fakes import Driver, expected_tokens, make_limits

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
