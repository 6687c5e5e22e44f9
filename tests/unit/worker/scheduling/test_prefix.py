"""The prefix cache is exact: what is reused, and what never is."""

from __future__ import annotations

import pytest

from tests.unit.worker.scheduling.fakes import Driver, expected_tokens, make_limits


@pytest.mark.parametrize(("num_prompt", "num_cached"), [(48, 47), (49, 48), (16, 15), (17, 16), (15, 0)])
def test_the_same_prompt_twice(num_prompt: int, num_cached: int) -> None:
    """B99: at least the last token is computed, and cached_tokens says what was reused."""
    driver = Driver(make_limits())
    prompt = range(num_prompt)
    first = driver.submit(prompt, 8)
    driver.run()
    num_plans = len(driver.plans)
    second = driver.submit(prompt, 8)
    driver.run()
    assert second.accepted is not None
    assert second.accepted.cached_tokens == num_cached
    assert sum(len(row.token_ids) for row in driver.plans[num_plans].rows) == num_prompt - num_cached
    assert second.tokens == first.tokens == [expected_tokens(first, 0)]


def test_a_full_hit_writes_no_kv_for_the_last_token() -> None:
    driver = Driver(make_limits())
    prompt = range(48)
    driver.submit(prompt, 1)
    driver.run()
    driver.submit(prompt, 1)
    plan = driver.launch()
    assert plan is not None
    (row,) = plan.rows
    assert (row.start, row.token_ids, row.write_from, row.samples) == (47, (47,), 48, (1,))
    assert len(row.page_table) == 3
    assert driver.scheduler.pool.num_held == 3


def test_3072_of_4096_shared_tokens_are_192_pages_of_16() -> None:
    driver = Driver(make_limits(num_pages=600, max_sequence_tokens=8192))
    shared = [at * 17 % 251 for at in range(3072)]
    driver.submit([*shared, *[1] * 1024], 4)
    driver.run()
    num_plans = len(driver.plans)
    second = driver.submit([*shared, *[2] * 1024], 1)
    driver.run()
    assert second.accepted is not None
    assert second.accepted.cached_tokens == 3072
    assert driver.plans[num_plans].rows[0].start == 192 * 16
    assert sum(len(row.token_ids) for plan in driver.plans[num_plans:] for row in plan.rows) == 1024


def test_output_is_reused_by_the_next_turn() -> None:
    driver = Driver(make_limits())
    first = driver.submit(range(20), 30)
    driver.run()
    # 20 + 30 tokens, the last one not written: 49 positions, 3 full pages.
    second = driver.submit([*range(20), *first.tokens[0], 7], 4)
    driver.run()
    assert second.accepted is not None
    assert second.accepted.cached_tokens == 48
    assert second.tokens[0] == expected_tokens(second, 0)


@pytest.mark.parametrize("fields", [{"chain_root": b"other"}, {"kv_context": b"other"}])
def test_nobody_hits_across_tenants_or_contexts(fields: dict[str, object]) -> None:
    driver = Driver(make_limits())
    driver.submit(range(48), 4)
    driver.run()
    other = driver.submit(range(48), 4, **fields)
    driver.run()
    assert other.accepted is not None
    assert other.accepted.cached_tokens == 0


def test_a_colliding_hash_serves_no_foreign_kv() -> None:
    """With a hash that maps everything to one value, only what is token for token the same may hit."""
    driver = Driver(make_limits())
    driver.scheduler._entrance._admission._hash_block = lambda parent, ids: b"same"
    driver.submit([1] * 40, 4)
    driver.run()
    other = driver.submit([2] * 40, 4)
    same = driver.submit([1] * 40, 4)
    driver.run()
    assert other.accepted is not None
    assert other.accepted.cached_tokens == 0
    assert same.accepted is not None
    assert same.accepted.cached_tokens == 16


def test_a_hit_may_follow_in_the_step_after_the_one_that_computed_it() -> None:
    """A result is what publishes pages: a prompt sent meanwhile is computed by itself, one sent after it hits."""
    driver = Driver(make_limits(), depth=2)
    driver.submit(range(48), 20)
    driver.launch()
    meanwhile = driver.submit(range(48), 20)
    driver.launch()
    driver.collect()
    after = driver.submit(range(48), 20)
    driver.run()
    assert meanwhile.accepted is not None
    assert after.accepted is not None
    assert (meanwhile.accepted.cached_tokens, after.accepted.cached_tokens) == (0, 47)
    assert after.tokens[0] == meanwhile.tokens[0] == expected_tokens(after, 0)


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    driver = Driver(make_limits(num_pages=8))
    prompt = range(96)
    driver.submit(prompt, 1)
    driver.run()
    # Takes 4 pages: the 2 free ones, and 2 of the 6 cached.
    driver.submit([9] * 48, 16)
    driver.run()
    again = driver.submit(prompt, 1)
    driver.run()
    assert again.accepted is not None
    assert again.accepted.cached_tokens == 64


def test_nothing_is_kept_where_prefixes_are_not_cached() -> None:
    driver = Driver(make_limits(caches_prefixes=False))
    first, second = driver.submit(range(48), 20), driver.submit(range(48), 20)
    driver.run()
    assert first.tokens == second.tokens == [expected_tokens(first, 0)]
    again = driver.submit(range(48), 8)
    driver.run()
    assert again.accepted is not None and again.accepted.cached_tokens == 0
    pool = driver.scheduler.pool
    assert (pool.num_cached, pool.num_held, pool.num_free) == (0, 0, pool.num_pages)
    assert not pool.events.drain().events
