"""Several choices over one prompt: pages shared, the partial one copied, each table its own afterwards."""

from __future__ import annotations

import pytest

from tests.unit.worker.scheduling.fakes import END, Driver, digest_model, expected_tokens, make_limits


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("num_prompt", [1, 15, 16, 17, 40, 48])
def test_choices_share_full_prompt_pages_and_copy_the_partial_one(num_prompt: int, overlap: bool) -> None:
    driver = Driver(make_limits(overlap=overlap, max_chunk_tokens=32), depth=2 if overlap else 1)
    outcome = driver.submit(num_prompt, 20, n=3)
    driver.run()
    assert outcome.tokens == [expected_tokens(outcome, choice) for choice in range(3)]
    copies = [copy for plan in driver.plans for copy in plan.copies]
    assert len(copies) == (2 if num_prompt % 16 else 0)
    assert {copy.num_tokens for copy in copies} <= {num_prompt % 16}
    full = num_prompt // 16
    assert outcome.finished[0].promised_pages == full + 3 * (-(-(num_prompt + 20) // 16) - full)
    assert sum(len(row.token_ids) for plan in driver.plans for row in plan.rows if row.start < num_prompt) == num_prompt


def test_the_prompt_samples_for_every_choice_in_one_row() -> None:
    driver = Driver(make_limits())
    driver.submit(16, 4, n=3)
    plan = driver.launch()
    assert plan is not None
    assert [row.samples for row in plan.rows] == [(0, 1, 2)]


def test_a_choice_that_ends_at_once_leaves_its_page_to_the_others() -> None:
    """Choice 0 ends with its first token; of the two left only one copies the partial page."""

    def model(context: tuple[int, ...], choice: int) -> tuple[int, ...]:
        return (END,) if choice == 0 else digest_model(context, choice)

    driver = Driver(make_limits(), model=model)
    outcome = driver.submit(20, 8, n=3)
    driver.run()
    assert len([copy for plan in driver.plans for copy in plan.copies]) == 1
    assert outcome.tokens == [[END], *(expected_tokens(outcome, choice) for choice in (1, 2))]


def test_every_choice_gets_its_promise_in_a_pool_of_just_that_size() -> None:
    """The promise is exact: one page fewer is refused, and all of it is used."""
    for num_pages, fits in ((7, True), (6, False)):
        driver = Driver(make_limits(num_pages=num_pages))
        outcome = driver.submit(20, 28, n=3)
        driver.run()
        assert (outcome.refused is None) == fits
        if fits:
            assert outcome.finished[2].used_pages == outcome.finished[2].promised_pages == 7


def test_a_cancelled_lead_does_not_stop_the_prompt() -> None:
    driver = Driver(make_limits(max_chunk_tokens=16))
    outcome = driver.submit(40, 8, n=2)
    driver.step()
    driver.cancel(outcome, choice=0)
    driver.run()
    assert outcome.finished[0].kind == "cancelled"
    assert outcome.tokens[1] == expected_tokens(outcome, 1)


def test_each_choice_publishes_its_own_output() -> None:
    driver = Driver(make_limits())
    outcome = driver.submit(10, 30, n=2)
    driver.run()
    for choice in range(2):
        next_turn = driver.submit([*outcome.request.prompt_ids, *outcome.tokens[choice]], 4)
        driver.run()
        assert next_turn.accepted is not None
        assert next_turn.accepted.cached_tokens == 32
        assert next_turn.tokens[0] == expected_tokens(next_turn, 0)
