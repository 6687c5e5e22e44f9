"""Pages as tensors: zero at first, and copied without what an earlier owner left."""

from __future__ import annotations

import math

import pytest
import torch

from headrace_worker.execution.kv_cache import KvCache, KvLayout
from headrace_worker.execution.memory import kv_budget, measure_peak
from headrace_worker.scheduling.plan import PageCopy

CPU = torch.device("cpu")
LAYOUT = KvLayout(2, 3, 4, 16, torch.float32, CPU)


def test_a_page_has_the_bytes_that_its_layout_says() -> None:
    assert (LAYOUT.bytes_per_token, LAYOUT.bytes_per_page) == (192, 3072)
    cache = KvCache(LAYOUT, 5)
    assert cache.layers[0].k_PBKD.nbytes * 4 == 6 * LAYOUT.bytes_per_page
    assert all(float(pages.k_PBKD.abs().sum()) == 0 for pages in cache.layers)


def test_a_copy_takes_the_first_slots_and_clears_the_rest() -> None:
    cache = KvCache(LAYOUT, 5)
    for pages in cache.layers:
        pages.k_PBKD[2] = 7.0
        pages.k_PBKD[3] = math.nan
    cache.copy([PageCopy(2, 3, 5)])
    for pages in cache.layers:
        assert torch.equal(pages.k_PBKD[3, :5], torch.full((5, 3, 4), 7.0))
        assert float(pages.k_PBKD[3, 5:].abs().sum()) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_pages_are_half_as_large(dtype: torch.dtype) -> None:
    layout = KvLayout(2, 3, 4, 16, dtype, CPU)
    assert layout.bytes_per_page == LAYOUT.bytes_per_page // 2
    assert KvCache(layout, 2).layers[1].v_PBKD.dtype == dtype


def test_pages_cost_no_memory_before_they_are_written() -> None:
    layout = KvLayout(1, 8, 64, 16, torch.float32, CPU)
    num_pages = 512 * 1024**2 // layout.bytes_per_page
    with measure_peak(CPU) as peak:
        cache = KvCache(layout, num_pages)
    assert cache.num_pages == num_pages
    assert peak.num_bytes < 64 * 1024**2


def test_the_peak_of_a_block_is_seen() -> None:
    with measure_peak(CPU) as peak:
        torch.ones(512 * 1024**2, dtype=torch.uint8)  # more than a process that freed some may have kept
    assert 384 * 1024**2 < peak.num_bytes < 1024 * 1024**2


def test_the_budget_on_cpu_is_what_was_asked_or_a_share_of_what_is_free() -> None:
    assert kv_budget(CPU, 12345, 0) == 12345
    assert 0 < kv_budget(CPU, None, 0) <= 2 * 1024**3
