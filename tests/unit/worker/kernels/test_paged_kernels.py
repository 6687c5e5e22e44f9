"""Paged attention kernels against their twins under the interpreter: ragged lengths, page edges, groups, windows."""

import pytest
import torch

from headrace_worker.kernels.paged_decode import PagedKv, SplitPlan, paged_decode, paged_decode_twin, plan_splits
from headrace_worker.kernels.paged_prefill import QueryTiles, paged_prefill, paged_prefill_twin

PAGE = 16


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def paged(
    kv_lens: list[int], num_kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32
) -> tuple[PagedKv, torch.Tensor]:
    """Pages in no order; what no sequence wrote is NaN, and must not be seen."""
    counts = [-(-length // PAGE) for length in kv_lens]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(9)) + 1
    table = torch.zeros(len(kv_lens), max(counts) + 1, dtype=torch.int32)
    shape = (sum(counts) + 1, PAGE, num_kv_heads, head_dim)
    k, v = (noise(*shape, seed=seed, dtype=dtype) for seed in (1, 2))
    start = 0
    for index, (count, length) in enumerate(zip(counts, kv_lens, strict=True)):
        pages = order[start : start + count]
        table[index, :count] = pages
        start += count
        if length % PAGE:
            for rows in (k, v):
                rows[pages[-1], length % PAGE :] = torch.nan
    k[0] = v[0] = torch.nan
    return PagedKv(k, v), table


@pytest.mark.parametrize("kv_lens", [[1], [15, 16, 17], [64, 65, 63, 1], [130, 0, 3]])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(8, 2, 32), (9, 3, 24)])
@pytest.mark.parametrize("window", [None, 20])
def test_decode(kv_lens: list[int], num_heads: int, num_kv_heads: int, head_dim: int, window: int | None) -> None:
    kv, table = paged(kv_lens, num_kv_heads, head_dim)
    q, lengths = noise(len(kv_lens), num_heads, head_dim), torch.tensor(kv_lens, dtype=torch.int32)
    splits = plan_splits(len(kv_lens), num_kv_heads, max(kv_lens), 8)
    got = paged_decode(q, kv, table, lengths, head_dim**-0.5, splits, window)
    torch.testing.assert_close(got, paged_decode_twin(q, kv, table, lengths, head_dim**-0.5, window))


@pytest.mark.parametrize("splits", [SplitPlan(1), SplitPlan(2, 128), SplitPlan(3), SplitPlan(5), SplitPlan(2, 512)])
def test_decode_does_not_depend_on_how_keys_are_shared_out(splits: SplitPlan) -> None:
    kv, table = paged([200, 40], 2, 16)
    q, lengths = noise(2, 4, 16), torch.tensor([200, 40], dtype=torch.int32)
    wanted = paged_decode_twin(q, kv, table, lengths, 0.25)
    torch.testing.assert_close(paged_decode(q, kv, table, lengths, 0.25, splits), wanted)


def test_decode_in_half_precision_and_with_scales() -> None:
    kv, table = paged([33, 70], 2, 16, torch.float16)
    kv = PagedKv(kv.k_PBKD, kv.v_PBKD, k_scale=0.5, v_scale=2.0)
    q, lengths = noise(2, 8, 16, dtype=torch.float16), torch.tensor([33, 70], dtype=torch.int32)
    got = paged_decode(q, kv, table, lengths, 0.25, SplitPlan(2, 64))
    torch.testing.assert_close(got, paged_decode_twin(q, kv, table, lengths, 0.25), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(("longest", "num_sequences"), [(1, 1), (64, 1), (8192, 1), (8192, 3), (500, 64)])
def test_no_split_has_less_than_a_tile_of_the_longest(longest: int, num_sequences: int) -> None:
    plan = plan_splits(num_sequences, 8, longest, 132)
    assert plan.split_tokens % 64 == 0 and 1 <= plan.num_splits <= min(32, -(-longest // 64))


@pytest.mark.parametrize(
    ("query_lens", "kv_lens"),
    [([1], [1]), ([5, 17], [5, 33]), ([64, 65, 1], [64, 80, 100]), ([130], [130]), ([3, 0, 2], [19, 4, 2])],
)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(4, 4, 16), (6, 2, 24)])
@pytest.mark.parametrize("window", [None, 10])
def test_prefill(
    query_lens: list[int], kv_lens: list[int], num_heads: int, num_kv_heads: int, head_dim: int, window: int | None
) -> None:
    kv, table = paged(kv_lens, num_kv_heads, head_dim)
    first_rows = [sum(query_lens[:index]) for index in range(len(query_lens))]
    tiles = QueryTiles.plan(query_lens, kv_lens, first_rows)
    q = noise(sum(query_lens) + 3, num_heads, head_dim)  # and three rows of padding
    got = paged_prefill(q, kv, table, tiles, head_dim**-0.5, window)
    torch.testing.assert_close(got, paged_prefill_twin(q, kv, table, tiles, head_dim**-0.5, window))
    assert not got[sum(query_lens) :].any()
