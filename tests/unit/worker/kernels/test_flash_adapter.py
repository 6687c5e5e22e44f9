"""The FlashAttention adapter against fakes with the libraries' own signatures, which attend by the torch twins."""

import inspect
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


def bind(names: str, required: int, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """A call against a library's parameters, in their order; the first `required` have no default."""
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if place < required else None,
        )
        for place, name in enumerate(names.split())
    ]
    return inspect.Signature(parameters).bind(*args, **named).arguments


class Flash2:
    """flash-attn 2.x: `flash_attn_varlen_func` and `flash_attn_with_kvcache`."""

    VARLEN = """
        q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p softmax_scale causal window_size softcap
        alibi_slopes deterministic return_attn_probs block_table
    """
    WITH_KVCACHE = """
        q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad block_table
        softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits return_softmax_lse
    """

    def varlen(self, *args: Any, **named: Any) -> Tensor:
        call = bind(self.VARLEN, 7, args, named)
        query_ends, kv_ends, table = call["cu_seqlens_q"], call["cu_seqlens_k"], call["block_table"]
        assert call["causal"] and call["k"].shape[1] % 256 == 0
        assert {query_ends.dtype, kv_ends.dtype, table.dtype} == {torch.int32}
        assert call["max_seqlen_q"] == max(differences(query_ends))
        assert call["max_seqlen_k"] == max(differences(kv_ends))
        window = back(call["window_size"], -1)
        pages = PagedKv(call["k"], call["v"])
        return varlen(call["q"], pages, query_ends, differences(kv_ends), table, call["softmax_scale"], window)

    def with_kvcache(self, *args: Any, **named: Any) -> Tensor:
        call = bind(self.WITH_KVCACHE, 3, args, named)
        q, table, lens = call["q"], call["block_table"], call["cache_seqlens"]
        assert q.dim() == 4 and q.shape[1] == 1 and {lens.dtype, table.dtype} == {torch.int32}
        pages, window = PagedKv(call["k_cache"], call["v_cache"]), back(call["window_size"], -1)
        ends = torch.arange(len(q) + 1)
        return varlen(q[:, 0], pages, ends, lens.tolist(), table, call["softmax_scale"], window)[:, None]


class Flash3:
    """flash_attn_interface: decodes and prompts through `flash_attn_with_kvcache`, which takes ragged queries."""

    WITH_KVCACHE = """
        q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad page_table
        cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale k_descale v_descale softmax_scale causal
        window_size attention_chunk softcap rotary_interleaved scheduler_metadata num_splits pack_gqa sm_margin
        return_softmax_lse
    """

    def varlen(self, *_: Any, **__: Any) -> Tensor:
        raise AssertionError("generation 3 reads pages in the other call")

    def with_kvcache(self, *args: Any, **named: Any) -> Tensor:
        call = bind(self.WITH_KVCACHE, 3, args, named)
        q, ends = call["q"], call.get("cu_seqlens_q")
        assert call["causal"]
        rows = q if ends is not None else q[:, 0]
        pages, lens = PagedKv(call["k_cache"], call["v_cache"]), call["cache_seqlens"].tolist()
        window = back(call["window_size"], -1)
        starts = ends if ends is not None else torch.arange(len(q) + 1)
        out = varlen(rows, pages, starts, lens, call["page_table"], call["softmax_scale"], window)
        return out if ends is not None else out[:, None]


class Flash4:
    """flash_attn.cute: returns the log-sum-exp, too; on Hopper it reads no pages."""

    VARLEN = """
        q k v cu_seqlens_q cu_seqlens_k seqused_q seqused_k page_table softmax_scale causal window_size
    """
    with_kvcache = None

    def varlen(self, *args: Any, **named: Any) -> tuple[Tensor, Tensor | None]:
        call = bind(self.VARLEN, 3, args, named)
        k, v, ends = call["k"], call["v"], call["cu_seqlens_k"]
        assert call["causal"] and k.dim() == 3 and k.shape[0] == int(ends[-1])
        lens = differences(ends)
        wide = torch.zeros(len(lens), max(lens), *k.shape[1:])
        pages = PagedKv(wide, wide.clone())
        for index, (start, length) in enumerate(zip(ends.tolist(), lens, strict=False)):
            pages.k_PBKD[index, :length] = k[start : start + length]
            pages.v_PBKD[index, :length] = v[start : start + length]
        table = torch.arange(len(lens), dtype=torch.int32)[:, None]
        window = back(call["window_size"], None)
        return varlen(call["q"], pages, call["cu_seqlens_q"], lens, table, call["softmax_scale"], window), None


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
