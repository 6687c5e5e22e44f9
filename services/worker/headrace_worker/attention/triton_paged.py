"""Paged attention by our own Triton kernels: chunks of queries in one launch, decodes in another.

Written for cards; under Triton's interpreter it runs anywhere, slowly. Takes any page size.
"""

from collections.abc import Sequence
from functools import cached_property

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
from headrace_worker.attention.written import rotate_and_write
from headrace_worker.kernels.kv_write import KvWrite
from headrace_worker.kernels.paged_decode import PagedKv, paged_decode, plan_splits
from headrace_worker.kernels.paged_prefill import QueryTiles, paged_prefill
from headrace_worker.kernels.rotation import Rotation


class Decodes:
    """The sequences with one query row: rows of the step, their tables and lengths."""

    def __init__(self, batch: AttentionBatch, members: list[int], rows: list[int]) -> None:
        device = batch.slots_T.device
        self.rows_S = torch.tensor(rows, device=device)
        self.table_SP = batch.page_table_SP[torch.tensor(members, device=device)]
        self.lens = [batch.kv_lens[member] for member in members]
        self.kv_lens_S = torch.tensor(self.lens, dtype=torch.int32, device=device)


class _TritonStep(AttentionStep):
    def __init__(self, batch: AttentionBatch, kv: Sequence[KvPages], scale: float) -> None:
        self.kv, self.scale = kv, scale
        self.slots_T, self.page_size = batch.slots_T, batch.page_size
        self.table_SP = batch.page_table_SP
        starts = [sum(batch.query_lens[:index]) for index in range(len(batch.query_lens))]
        single = [index for index, length in enumerate(batch.query_lens) if length == 1]
        longer = [index for index, length in enumerate(batch.query_lens) if length > 1]
        self.decodes = Decodes(batch, single, [starts[index] for index in single]) if single else None
        self.only_decodes = len(single) == batch.num_rows
        self.tiles = (
            QueryTiles.plan(batch.query_lens, batch.kv_lens, starts, batch.slots_T.device, only=longer)
            if longer
            else None
        )

    def attend(self, layer: int, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None = None) -> Tensor:
        pages = self.kv[layer]
        self.kv_write.write(k_TKD, pages.k_PBKD, pages.k_scale)
        self.kv_write.write(v_TKD, pages.v_PBKD, pages.v_scale)
        return self._attend_pages(q_TND, pages, window)

    def rotate_and_attend(self, layer: int, heads: HeadRows, rotation: Rotation, window: int | None = None) -> Tensor:
        pages = self.kv[layer]
        return self._attend_pages(rotate_and_write(heads, rotation, self.slots_T, pages), pages, window)

    @cached_property
    def kv_write(self) -> KvWrite:
        """To plan it on a card is to wait for the card: only where rows come rotated already."""
        return KvWrite.plan(self.slots_T, self.page_size)

    def _attend_pages(self, q_TND: Tensor, pages: KvPages, window: int | None) -> Tensor:
        kv = PagedKv(pages.k_PBKD, pages.v_PBKD, pages.k_scale, pages.v_scale)
        if self.only_decodes and self.decodes is not None:
            return self._decode(self.decodes, q_TND, kv, window)
        if self.tiles is None:
            out_TND = torch.zeros_like(q_TND)
        else:
            out_TND = paged_prefill(q_TND, kv, self.table_SP, self.tiles, self.scale, window)
        if self.decodes is not None:
            rows_S = self.decodes.rows_S
            out_TND[rows_S] = self._decode(self.decodes, q_TND[rows_S], kv, window)
        return out_TND

    def _decode(self, decodes: Decodes, q_SND: Tensor, kv: PagedKv, window: int | None) -> Tensor:
        num_kv_heads = kv.k_PBKD.shape[2]
        splits = plan_splits(len(decodes.lens), num_kv_heads, max(decodes.lens), num_multiprocessors(q_SND.device))
        return paged_decode(q_SND, kv, decodes.table_SP, decodes.kv_lens_S, self.scale, splits, window)


def num_multiprocessors(device: torch.device) -> int:
    """Of the card; one where there is none."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


class StaticDecodes(AttentionStep):
    """One query per sequence, from tensors alone: what a graph captures."""

    def __init__(self, batch: DecodeBatch, kv: Sequence[KvPages], scale: float) -> None:
        self.batch, self.kv, self.scale = batch, kv, scale
        num_kv_heads = kv[0].k_PBKD.shape[2]
        cores = num_multiprocessors(batch.slots_S.device)
        self.splits = plan_splits(len(batch.slots_S), num_kv_heads, batch.most_tokens, cores)

    def attend(self, layer: int, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None = None) -> Tensor:
        raise AssertionError("to plan a write is to wait for the device: captured rows are rotated on the way")

    def rotate_and_attend(self, layer: int, heads: HeadRows, rotation: Rotation, window: int | None = None) -> Tensor:
        pages, batch = self.kv[layer], self.batch
        q_SND = rotate_and_write(heads, rotation, batch.slots_S, pages)
        kv = PagedKv(pages.k_PBKD, pages.v_PBKD, pages.k_scale, pages.v_scale)
        return paged_decode(q_SND, kv, batch.page_table_SP, batch.kv_lens_S, self.scale, self.splits, window)


class TritonPagedAttention(AttentionBackend):
    """Ours. Its results differ from the twins' by rounding only."""

    name = "triton"
    row_kernels = True

    def begin_decodes(self, batch: DecodeBatch, kv: Sequence[KvPages], scale: float) -> AttentionStep:
        return StaticDecodes(batch, kv, scale)

    def begin(self, batch: AttentionBatch, kv: Sequence[KvPages], scale: float) -> AttentionStep:
        return _TritonStep(batch, kv, scale)
