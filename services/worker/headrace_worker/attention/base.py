"""The attention port: what one engine step tells attention, and what a model layer asks of it.

Knows nothing of requests, admission or models; it sees rows of queries, page tables and lengths.

Shape suffixes used in the worker's tensor code:
    T rows (tokens) of this step      S sequences of this step     P pages in a table, or in the pool
    B tokens per page                 N query heads                K key/value heads
    G = N / K, query heads per KV head   D head width              E hidden width
    I intermediate (MLP) width        V vocabulary                 R rows whose logits are wanted
    L key positions
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headrace_worker.kernels.rotation import Rotation

NULL_PAGE = 0
"""Padding rows, and rows whose KV must not be written, write here. It never belongs to a sequence."""


@dataclass(frozen=True)
class AttentionBatch:
    """The rows of one step, sequence after sequence; a decode is a sequence with one query row.

    Row i of sequence s stands at absolute position `kv_lens[s] - query_lens[s] + i`. Rows behind the last sequence
    are padding: their slot is 0 and their attention output is zero. `kv_lens` counts this step's rows too. The host
    tuples and the device tensors say the same thing, so that planning never waits for a device.
    """

    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    page_size: int
    page_table_SP: Tensor
    """int32 [S, P]; columns behind a sequence's pages hold NULL_PAGE. Reserved pages may be listed before their use."""
    slots_T: Tensor
    """int64 [T]; page * page_size + offset where this row's K and V are written."""

    def __post_init__(self) -> None:
        assert len(self.query_lens) == len(self.kv_lens) == self.page_table_SP.shape[0], "one entry per sequence"
        assert sum(self.query_lens) <= self.slots_T.shape[0], "every query row needs a slot"
        for query_len, kv_len in zip(self.query_lens, self.kv_lens, strict=True):
            assert 0 < query_len <= kv_len, f"query_len {query_len} of kv_len {kv_len}"
        reach = self.page_table_SP.shape[1] * self.page_size
        assert max(self.kv_lens, default=0) <= reach, "the page table is shorter than the longest sequence"

    @property
    def num_rows(self) -> int:
        """Rows of this step, padding included."""
        return int(self.slots_T.shape[0])

    def used_pages_SP(self) -> Tensor:
        """int64 page table with NULL_PAGE for every page that starts at or behind its sequence's `kv_lens`."""
        table_SP = self.page_table_SP.to(torch.int64)
        kv_lens_S = torch.tensor(self.kv_lens, dtype=torch.int64).to(table_SP.device)
        starts_P = torch.arange(table_SP.shape[1], device=table_SP.device) * self.page_size
        return table_SP.where(starts_P < kv_lens_S[:, None], NULL_PAGE)

    @classmethod
    def build(
        cls,
        query_lens: Sequence[int],
        kv_lens: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        page_size: int,
        device: torch.device | str = "cpu",
        num_rows: int | None = None,
    ) -> "AttentionBatch":
        """The plain way to make a batch: every row is written where its position says; extra rows are padding."""
        num_pages = max((len(table) for table in page_tables), default=1)
        padded = [list(table) + [NULL_PAGE] * (num_pages - len(table)) for table in page_tables]
        slots: list[int] = []
        for query_len, kv_len, table in zip(query_lens, kv_lens, page_tables, strict=True):
            for position in range(kv_len - query_len, kv_len):
                slots.append(table[position // page_size] * page_size + position % page_size)
        slots += [NULL_PAGE] * ((num_rows or len(slots)) - len(slots))
        return cls(
            query_lens=tuple(query_lens),
            kv_lens=tuple(kv_lens),
            page_size=page_size,
            page_table_SP=torch.tensor(padded, dtype=torch.int32, device=device).reshape(len(padded), num_pages),
            slots_T=torch.tensor(slots, dtype=torch.int64, device=device),
        )


@dataclass(frozen=True)
class DecodeBatch:
    """A step of one query row per sequence, told by tensors that keep their place while their content changes.

    A row of length 0 is padding: its slot is 0 and its output is zero.
    """

    page_table_SP: Tensor
    """int32"""
    kv_lens_S: Tensor
    """int32, this step's row included"""
    slots_S: Tensor
    """int64"""
    most_tokens: int
    """No sequence is ever longer."""


@dataclass(frozen=True)
class KvPages:
    """The K and V pages of one layer, each [P, B, K, D] and contiguous; page 0 is NULL_PAGE.

    Whoever allocates them fills them with zeros once. The content of a slot that no sequence has written is never
    visible in an output, whatever it is (an earlier owner's NaN included).
    """

    k_PBKD: Tensor
    v_PBKD: Tensor
    k_scale: float = 1.0
    v_scale: float = 1.0
    """What fp8 pages are multiplied by when they are read."""


class HeadRows(NamedTuple):
    """A step's rows before they are rotated: queries and keys stacked over heads [T, N + K, D], values [T, K, D]."""

    qk_THD: Tensor
    v_TKD: Tensor

    @property
    def num_heads(self) -> int:
        return self.qk_THD.shape[1] - self.v_TKD.shape[1]


class AttentionStep(ABC):
    """Attention of one engine step, for all layers; made by `AttentionBackend.begin`."""

    @abstractmethod
    def attend(self, layer: int, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None = None) -> Tensor:
        """Write the rows' K and V to their slots, then attend causally over each sequence's pages.

        A row at position p sees keys max(0, p - window + 1) .. p. Keys arrive rotated. Returns [T, N, D].
        """

    def rotate_and_attend(self, layer: int, heads: HeadRows, rotation: Rotation, window: int | None = None) -> Tensor:
        """`attend` of rows that are not rotated yet; backends whose kernels do both at once have their own."""
        qk_THD = rotation.apply(heads.qk_THD)
        num_heads = heads.num_heads
        return self.attend(layer, qk_THD[:, :num_heads], qk_THD[:, num_heads:], heads.v_TKD, window)


class AttentionBackend(ABC):
    """A way to attend over pages, chosen once at start."""

    name: str
    row_kernels = False
    """Whether the layers beside it should use our kernels, too."""

    def begin_decodes(self, batch: DecodeBatch, kv: Sequence[KvPages], scale: float) -> AttentionStep | None:
        """A step that may be captured and replayed: it reads lengths and tables from tensors alone. None: it cannot."""
        return None

    @abstractmethod
    def begin(self, batch: AttentionBatch, kv: Sequence[KvPages], scale: float) -> AttentionStep:
        """Prepare one step (masks, indices: once for all layers). `kv` has one entry per layer."""
