"""FlashAttention 2, 3 and 4, whichever is installed, behind the attention port. Knows their calls, not their code.

2 and 3 read pages by themselves. 4 reads none on Hopper: it computes prompts there, from keys and values that are
gathered first, beside our own decode. Not yet run on a card: the calls are checked against their signatures.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace_worker.attention.base import (
    AttentionBackend,
    AttentionBatch,
    AttentionStep,
    DecodeBatch,
    HeadRows,
    KvPages,
)
from headrace_worker.attention.needs import Abilities
from headrace_worker.attention.triton_paged import Decodes, StaticDecodes, num_multiprocessors
from headrace_worker.attention.written import rotate_and_write
from headrace_worker.kernels.kv_write import KvWrite
from headrace_worker.kernels.paged_decode import PagedKv, paged_decode, plan_splits
from headrace_worker.kernels.rotation import Rotation

_HALVES = frozenset({"float16", "bfloat16"})
_MODULES = {3: "flash_attn_interface", 4: "flash_attn.cute", 2: "flash_attn"}
ABILITIES = {
    2: Abilities(
        devices=frozenset({"cuda"}), capabilities=range(80, 130), dtypes=_HALVES, page_multiple=256, fp8_kv=False,
        largest_head_dim=256, head_dim_multiple=8,
    ),
    3: Abilities(
        devices=frozenset({"cuda"}), capabilities=range(90, 91), dtypes=_HALVES, page_multiple=16, fp8_kv=False,
        largest_head_dim=256, head_dim_multiple=8,
    ),
    4: Abilities(
        devices=frozenset({"cuda"}), capabilities=range(90, 91), dtypes=_HALVES, fp8_kv=False,
        largest_head_dim=128, head_dim_multiple=8,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class FlashLibrary:
    """One installed generation. `with_kvcache` is None where it reads no pages."""

    generation: int
    varlen: Callable[..., Any]
    with_kvcache: Callable[..., Any] | None

    @property
    def abilities(self) -> Abilities:
        return ABILITIES[self.generation]


def find_flash() -> dict[int, FlashLibrary]:
    """Every generation that can be imported, the one to be preferred first."""
    found = {}
    for generation, name in _MODULES.items():
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        varlen = getattr(module, "flash_attn_varlen_func", None)
        with_kvcache = getattr(module, "flash_attn_with_kvcache", None) if generation != 4 else None
        if varlen is not None and (with_kvcache is not None or generation == 4):
            found[generation] = FlashLibrary(generation, varlen, with_kvcache)
    return found


class _Prompts:
    """The sequences with several query rows: their rows, tables and lengths, as varlen calls want them."""

    def __init__(self, batch: AttentionBatch, members: list[int], starts: list[int]) -> None:
        device = batch.slots_T.device
        query_lens = [batch.query_lens[member] for member in members]
        self.kv_lens = [batch.kv_lens[member] for member in members]
        self.longest_query, self.longest_kv = max(query_lens), max(self.kv_lens)
        self.query_ends = _ends(query_lens, device)
        self.kv_ends = _ends(self.kv_lens, device)
        self.kv_lens_S = torch.tensor(self.kv_lens, dtype=torch.int32, device=device)
        self.table_SP = batch.page_table_SP[torch.tensor(members, device=device)]
        rows = [row for member in members for row in range(starts[member], starts[member] + batch.query_lens[member])]
        self.rows_T = None if len(rows) == batch.num_rows else torch.tensor(rows, device=device)


def _ends(lengths: Sequence[int], device: torch.device) -> Tensor:
    """int32 [S + 1]: 0, then where each sequence ends."""
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return torch.tensor(ends, dtype=torch.int32, device=device)


class _FlashStep(AttentionStep):
    def __init__(self, batch: AttentionBatch, kv: Sequence[KvPages], scale: float, library: FlashLibrary) -> None:
        self.kv, self.scale, self.library = kv, scale, library
        self.slots_T, self.page_size = batch.slots_T, batch.page_size
        starts = [sum(batch.query_lens[:index]) for index in range(len(batch.query_lens))]
        single = [index for index, length in enumerate(batch.query_lens) if length == 1]
        longer = [index for index, length in enumerate(batch.query_lens) if length > 1]
        self.decodes = Decodes(batch, single, [starts[index] for index in single]) if single else None
        self.prompts = _Prompts(batch, longer, starts) if longer else None

    def attend(self, layer: int, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None = None) -> Tensor:
        pages = self.kv[layer]
        write = KvWrite.plan(self.slots_T, self.page_size)
        write.write(k_TKD, pages.k_PBKD)
        write.write(v_TKD, pages.v_PBKD)
        return self._attend_pages(q_TND, pages, window)

    def rotate_and_attend(self, layer: int, heads: HeadRows, rotation: Rotation, window: int | None = None) -> Tensor:
        pages = self.kv[layer]
        return self._attend_pages(rotate_and_write(heads, rotation, self.slots_T, pages), pages, window)

    def _attend_pages(self, q_TND: Tensor, pages: KvPages, window: int | None) -> Tensor:
        out_TND = torch.zeros_like(q_TND)
        if self.prompts is not None:
            rows_T = self.prompts.rows_T
            if rows_T is None:
                return self._prefill(self.prompts, q_TND, pages, window)
            out_TND[rows_T] = self._prefill(self.prompts, q_TND[rows_T], pages, window)
        if self.decodes is not None:
            rows_S = self.decodes.rows_S
            out_TND[rows_S] = self._decode(self.decodes, q_TND[rows_S], pages, window)
        return out_TND

    def _prefill(self, prompts: _Prompts, q_TND: Tensor, pages: KvPages, window: int | None) -> Tensor:
        k, v = pages.k_PBKD, pages.v_PBKD
        shared = {"softmax_scale": self.scale, "causal": True, "window_size": _window(window, self.library)}
        lengths = {"max_seqlen_q": prompts.longest_query, "max_seqlen_k": prompts.longest_kv}
        if self.library.generation == 2:
            ends = {"cu_seqlens_q": prompts.query_ends, "cu_seqlens_k": prompts.kv_ends}
            return _first(self.library.varlen(q_TND, k, v, **ends, **lengths, **shared, block_table=prompts.table_SP))
        if self.library.generation == 3:
            assert self.library.with_kvcache is not None, "generation 3 reads pages"
            where = {"cache_seqlens": prompts.kv_lens_S, "page_table": prompts.table_SP}
            rows = {"cu_seqlens_q": prompts.query_ends, "max_seqlen_q": prompts.longest_query}
            return _first(self.library.with_kvcache(q_TND, k, v, **where, **rows, **shared))
        k_LKD, v_LKD = (gather_pages(each, prompts.table_SP, prompts.kv_lens) for each in (k, v))
        ends = {"cu_seqlens_q": prompts.query_ends, "cu_seqlens_k": prompts.kv_ends}
        return _first(self.library.varlen(q_TND, k_LKD, v_LKD, **ends, **shared))

    def _decode(self, decodes: Decodes, q_SND: Tensor, pages: KvPages, window: int | None) -> Tensor:
        k, v = pages.k_PBKD, pages.v_PBKD
        if self.library.with_kvcache is None:
            plan = plan_splits(len(decodes.lens), k.shape[2], max(decodes.lens), num_multiprocessors(q_SND.device))
            kv = PagedKv(k, v)
            return paged_decode(q_SND, kv, decodes.table_SP, decodes.kv_lens_S, self.scale, plan, window)
        table = {"block_table" if self.library.generation == 2 else "page_table": decodes.table_SP}
        shared = {"softmax_scale": self.scale, "causal": True, "window_size": _window(window, self.library)}
        out = self.library.with_kvcache(q_SND[:, None], k, v, cache_seqlens=decodes.kv_lens_S, **table, **shared)
        return _first(out)[:, 0]


def gather_pages(pages_PBKD: Tensor, table_SP: Tensor, kv_lens: Sequence[int]) -> Tensor:
    """The written slots of each sequence, one sequence after another: [sum of lengths, K, D]."""
    page_size = pages_PBKD.shape[1]
    parts = [
        pages_PBKD[table_SP[index, : -(-length // page_size)].to(torch.int64)].flatten(0, 1)[:length]
        for index, length in enumerate(kv_lens)
    ]
    return torch.cat(parts)


def _window(window: int | None, library: FlashLibrary) -> tuple[int | None, int | None]:
    """Keys before and after a query's own that it sees; without a window 4 wants None where the others want -1."""
    if library.generation == 4:
        return (None, None) if window is None else (window - 1, 0)
    return (-1, -1) if window is None else (window - 1, 0)


def _first(out: Any) -> Tensor:
    """Some generations return the log-sum-exp, too."""
    result: Tensor = out[0] if isinstance(out, tuple) else out
    return result


class FlashAttention(AttentionBackend):
    """One generation of it."""

    row_kernels = True

    def __init__(self, library: FlashLibrary) -> None:
        self.library = library
        self.name = f"flash_attn {library.generation}"

    def begin_decodes(self, batch: DecodeBatch, kv: Sequence[KvPages], scale: float) -> AttentionStep:
        return StaticDecodes(batch, kv, scale)  # ours: graphs hold one launch whatever the lengths are

    def begin(self, batch: AttentionBatch, kv: Sequence[KvPages], scale: float) -> AttentionStep:
        return _FlashStep(batch, kv, scale, self.library)
