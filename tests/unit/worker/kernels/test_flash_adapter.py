"""The FlashAttention adapter against fakes with the libraries' own signatures, which attend by the torch twins."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace_worker.attention.base import AttentionBatch, HeadRows
from headrace_worker.attention.flash import ABILITIES, FlashAttention, FlashLibrary
from headrace_worker.attention.torch_paged import TorchPagedAttention
from headrace_worker.kernels.paged_decode import PagedKv
from headrace_worker.kernels.paged_prefill import QueryTiles, paged_prefill_twin
from headrace_worker.kernels.rotation import Rotation
from tests.unit.worker.attention.steps import HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, make_pages, make_story

PAGE = 256


def varlen(
    q: Tensor, pages: PagedKv, query_ends: Tensor, kv_lens: list[int], table: Tensor, scale: float, window: int | None
) -> Tensor:
    ends = query_ends.tolist()
    query_lens = [end - start for start, end in itertools.pairwise(ends)]
    tiles = QueryTiles.plan(query_lens, kv_lens, ends[:-1])
    return paged_prefill_twin(q, pages, table, tiles, scale, window)


def back(window_size: tuple[int | None, int | None], none: int | None) -> int | None:
    left, right = window_size
    assert (left, right) == (none, none) or right == 0, window_size
    return None if left in (none, None) else left + 1


def differences(ends: Tensor) -> list[int]:
    return [int(each) for each in ends.diff()]


class Flash2:
    """flash-attn 2.x: `flash_attn_varlen_func` and `flash_attn_with_kvcache`."""

    def varlen(
        self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
        deterministic: bool = False, return_attn_probs: bool = False, block_table: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        assert causal and block_table is not None and softmax_scale is not None
        assert {cu_seqlens_q.dtype, cu_seqlens_k.dtype, block_table.dtype} == {torch.int32} and k.shape[1] % 256 == 0
        assert max_seqlen_q == max(differences(cu_seqlens_q)) and max_seqlen_k == max(differences(cu_seqlens_k))
        kv_lens = differences(cu_seqlens_k)
        window = back(window_size, -1)
        return varlen(q, PagedKv(k, v), cu_seqlens_q, kv_lens, block_table, softmax_scale, window)

    def with_kvcache(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
        rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None, cache_seqlens: Tensor | None = None,
        cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None, block_table: Tensor | None = None,
        softmax_scale: float | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None,
        num_splits: int = 0, return_softmax_lse: bool = False,
    ) -> Tensor:  # fmt: skip
        assert q.dim() == 4 and q.shape[1] == 1 and block_table is not None and cache_seqlens is not None
        assert softmax_scale is not None and {cache_seqlens.dtype, block_table.dtype} == {torch.int32}
        ends = torch.arange(len(q) + 1)
        lens = cache_seqlens.tolist()
        pages = PagedKv(k_cache, v_cache)
        return varlen(q[:, 0], pages, ends, lens, block_table, softmax_scale, back(window_size, -1))[:, None]


class Flash3:
    """flash_attn_interface: decodes and prompts through `flash_attn_with_kvcache`, which takes ragged queries."""

    def varlen(self, *_: Any, **__: Any) -> Tensor:
        raise AssertionError("generation 3 reads pages in the other call")

    def with_kvcache(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
        qv: Tensor | None = None, rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None,
        cache_seqlens: Tensor | None = None, cache_batch_idx: Tensor | None = None,
        cache_leftpad: Tensor | None = None, page_table: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k_new: Tensor | None = None, max_seqlen_q: int | None = None,
        rotary_seqlens: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
        v_descale: Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0,
        rotary_interleaved: bool = True, scheduler_metadata: Tensor | None = None, num_splits: int = 0,
        pack_gqa: bool | None = None, sm_margin: int = 0, return_softmax_lse: bool = False,
    ) -> Tensor:  # fmt: skip
        assert page_table is not None and cache_seqlens is not None and softmax_scale is not None and causal
        rows = q if cu_seqlens_q is not None else q[:, 0]
        ends = cu_seqlens_q if cu_seqlens_q is not None else torch.arange(len(q) + 1)
        pages, lens = PagedKv(k_cache, v_cache), cache_seqlens.tolist()
        out = varlen(rows, pages, ends, lens, page_table, softmax_scale, back(window_size, -1))
        return out if cu_seqlens_q is not None else out[:, None]


class Flash4:
    """flash_attn.cute: returns the log-sum-exp, too; on Hopper it reads no pages."""

    with_kvcache = None

    def varlen(
        self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
        seqused_q: Tensor | None = None, seqused_k: Tensor | None = None, page_table: Tensor | None = None,
        softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int | None, int | None] = (None, None),
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        assert causal and cu_seqlens_q is not None and cu_seqlens_k is not None and softmax_scale is not None
        assert k.dim() == 3 and k.shape[0] == int(cu_seqlens_k[-1])
        lens = differences(cu_seqlens_k)
        wide = torch.zeros(len(lens), max(lens), *k.shape[1:])
        pages = PagedKv(wide, wide.clone())
        for index, (start, length) in enumerate(zip(cu_seqlens_k.tolist(), lens, strict=False)):
            pages.k_PBKD[index, :length] = k[start : start + length]
            pages.v_PBKD[index, :length] = v[start : start + length]
        table = torch.arange(len(lens), dtype=torch.int32)[:, None]
        return varlen(q, pages, cu_seqlens_q, lens, table, softmax_scale, back(window_size, None)), None


FAKES: dict[int, Any] = {2: Flash2(), 3: Flash3(), 4: Flash4()}


@pytest.mark.parametrize("generation", FAKES)
@pytest.mark.parametrize("window", [None, 5])
def test_a_mixed_step_equals_the_torch_backend(generation: int, window: int | None) -> None:
    """A whole prompt, a chunk deep in its prompt, and two decodes; rows that are rotated on the way."""
    fake = FAKES[generation]
    backend = FlashAttention(FlashLibrary(generation, fake.varlen, fake.with_kvcache))
    lens = [(7, 7), (3, 260), (1, 12), (1, 257)]
    kv, twin_kv = (make_pages(num_pages=8, page_size=PAGE) for _ in range(2))
    for pages in (kv, twin_kv):
        noise = torch.randn(2, *pages.k_PBKD.shape, generator=torch.Generator().manual_seed(3))
        pages.k_PBKD.copy_(noise[0])
        pages.v_PBKD.copy_(noise[1])
    batch = AttentionBatch.build([q for q, _ in lens], [kv for _, kv in lens], [[5], [1, 2], [4], [3, 6]], PAGE)
    story = make_story(batch.num_rows, [], seed=1)
    heads = HeadRows(torch.cat((story.q_LND, story.k_LKD), dim=1), story.v_LKD)
    angles = torch.rand(batch.num_rows, 1, HEAD_DIM // 2, generator=torch.Generator().manual_seed(2))
    turn = Rotation(torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1))
    got = backend.begin(batch, [kv], 0.25).rotate_and_attend(0, heads, turn, window)
    wanted = TorchPagedAttention().begin(batch, [twin_kv], 0.25).rotate_and_attend(0, heads, turn, window)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert got.shape == (batch.num_rows, NUM_HEADS, HEAD_DIM) and kv.k_PBKD.shape[2] == NUM_KV_HEADS


def test_generations_declare_their_pages_and_cards() -> None:
    assert ABILITIES[2].page_multiple == 256
    assert 80 in ABILITIES[2].capabilities and 80 not in ABILITIES[3].capabilities
