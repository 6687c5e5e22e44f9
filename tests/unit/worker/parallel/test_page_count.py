"""Every page lies on every rank: the poorest decides, and a shared budget is spent once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace_worker.config import WorkerConfig
from headrace_worker.execution.page_count import count_pages
from headrace_worker.execution.runner import RunnerError
from headrace_worker.execution.steps import RankSizes


def config(**settings: Any) -> WorkerConfig:
    return WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), source="m", **settings)


def rank(page_bytes: int, budget_bytes: int) -> RankSizes:
    return RankSizes(0, 0, page_bytes, budget_bytes)


def test_the_gpu_with_the_least_room_for_pages_decides() -> None:
    """Not the least bytes: the last stage has 1 layer less, and bytes for the output matrix less."""
    ranks = [rank(1000, 100_000), rank(1000, 90_000), rank(800, 88_000)]
    assert count_pages(config(device="cuda"), ranks) == 90 - 1
    assert count_pages(config(device="cuda"), [rank(1000, 100_000), rank(500, 40_000)]) == 80 - 1


def test_ranks_on_a_cpu_and_a_budget_in_bytes_share_one_memory() -> None:
    assert count_pages(config(), [rank(300, 6000), rank(200, 5000)]) == 5000 // 500 - 1
    assert count_pages(config(device="cuda", kv_bytes=5000), [rank(300, 5000), rank(200, 5000)]) == 9


def test_a_number_of_pages_is_taken_as_it_is() -> None:
    assert count_pages(config(num_pages=7), [rank(10**9, 0)]) == 7


def test_a_rank_without_room_for_two_pages_is_refused() -> None:
    with pytest.raises(RunnerError, match="kv_bytes: 1999 bytes hold no page; at least 2000 are needed"):
        count_pages(config(device="cuda"), [rank(1000, 1999), rank(1000, 50_000)])
