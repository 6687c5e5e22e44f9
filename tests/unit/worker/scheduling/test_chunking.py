"""The chunk search keeps the inter-token budget where it can, and never stops a prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.scheduling.chunking import Beside, prefill_budget
from tests.unit.worker.scheduling.fakes import Driver, make_limits


class LinearModel:
    """A step costs 1 ms, 0.1 ms per prompt token and 0.05 ms per decode."""

    def __init__(self) -> None:
        self.num_calls = 0

    def predict_step_s(
        self, prefill_tokens: int, decode_rows: int, context_tokens: int, cached_tokens: int = 0
    ) -> float:
        self.num_calls += 1
        return 1e-3 + 1e-4 * prefill_tokens + 5e-5 * decode_rows


@given(st.floats(0, 0.2), st.integers(1, 64), st.sampled_from([16, 32]), st.integers(16, 2048))
def test_the_search_finds_the_largest_chunk_that_keeps_the_gap(
    gap_s: float, num_decodes: int, low: int, high: int
) -> None:
    model = LinearModel()
    found = prefill_budget(model, gap_s, Beside(num_decodes, 0, 0), (low, high))
    assert model.num_calls <= 10
    sizes = [low, *(size for size in range(low, high, low)), max(low, high)]
    keeping = [size for size in sizes if model.predict_step_s(size, num_decodes, 0) <= gap_s]
    assert found == max(keeping, default=low)


def test_the_tightest_running_budget_bounds_the_chunk() -> None:
    driver = Driver(make_limits(max_chunk_tokens=256, num_pages=400), predictor=LinearModel())
    driver.submit(16, 200, inter_token_s=0.010)
    driver.submit(16, 200, inter_token_s=0.050)
    driver.step()
    driver.submit(2000, 8)
    plan = driver.step()
    assert plan is not None
    # 1 ms + 2 decodes * 0.05 ms leave 8.9 ms = 89 tokens = 5 pages.
    assert [len(row.token_ids) for row in plan.rows] == [1, 1, 80]
    driver.run()


def test_without_a_running_budget_the_chunk_is_whole() -> None:
    driver = Driver(make_limits(max_chunk_tokens=256, num_pages=400), predictor=LinearModel())
    driver.submit(16, 200)
    driver.step()
    driver.submit(2000, 8, inter_token_s=0.001)
    plan = driver.step()
    assert plan is not None
    assert [len(row.token_ids) for row in plan.rows] == [1, 256]


def test_an_impossible_budget_still_moves_a_page_of_prompt_per_step() -> None:
    driver = Driver(make_limits(num_pages=400), predictor=LinearModel())
    driver.submit(16, 200, inter_token_s=1e-6)
    driver.step()
    driver.submit(160, 1)
    for _ in range(10):
        plan = driver.step()
        assert plan is not None
        assert [len(row.token_ids) for row in plan.rows] == [1, 16]
    assert driver.outcomes["r1"].is_over


def test_a_chunk_is_smaller_the_more_of_its_prompt_is_before_it() -> None:
    class Quadratic(LinearModel):
        def predict_step_s(
            self, prefill_tokens: int, decode_rows: int, context_tokens: int, cached_tokens: int = 0
        ) -> float:
            pairs = prefill_tokens * (cached_tokens + prefill_tokens / 2)
            return super().predict_step_s(prefill_tokens, decode_rows, context_tokens) + 1e-7 * pairs

    driver = Driver(make_limits(max_chunk_tokens=256, num_pages=400), predictor=Quadratic())
    driver.submit(16, 200, inter_token_s=0.02)
    driver.step()
    driver.submit(2000, 1)
    chunks = []
    while not driver.outcomes["r1"].is_over:
        plan = driver.step()
        assert plan is not None
        chunks += [len(row.token_ids) for row in plan.rows if len(row.token_ids) > 1]
    assert sum(chunks) == 2000
    assert chunks[:-1] == sorted(chunks[:-1], reverse=True)
    # 18.95 ms: 160 tokens alone, 64 on top of 1,936.
    assert (chunks[0], chunks[-2]) == (160, 64)
