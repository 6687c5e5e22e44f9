"""Paged attention in torch for any device: no loop over sequences, only over groups of similar shape.

Sequences are grouped by the powers of two above their query and page counts, so that padding at most doubles either
and a step has few groups. A group's pages are gathered, then attended with one fused call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from headrace_worker.attention.base import AttentionBackend, AttentionBatch, AttentionStep, KvPages
from headrace_worker.kernels.kv_write import KvWrite, from_pages

QUERY_BLOCK = 128
"""Queries of one call. It leaves out the keys behind them, so a long chunk does little more than half the work."""


def _bucket(count: int) -> int:
    """The exponent of the power of two at or above `count`."""
    return (count - 1).bit_length()


@dataclass
class _Group:
    """Sequences of one shape: S of them, Q padded query rows each, over L padded key positions."""

    rows: slice | None
    """Of the step's rows, where these are the queries in their order, without padding: nothing need be gathered."""
    is_fresh: bool
    """Whether such rows hold all keys, too."""
    rows_SQ: Tensor
    """int64: which row of the step is query i of a sequence; padding repeats the sequence's last row."""
    row_is_real_SQ: Tensor
    """bool; only real rows are written back."""
    positions_SQ: Tensor
    """int64 absolute position of each query."""
    pages: Tensor
    """int64 [S * P], sequence after sequence."""
    num_pages: int
    blocks: tuple[tuple[int, int, int], ...]
    """(first query, end, keys that any of them sees), over all queries."""
    masks: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, page_size: int, dtype: torch.dtype) -> Tensor:
        """Additive mask [S, 1, Q, L], made once per window and step."""
        key = (window, dtype)
        if key not in self.masks:
            keys_L = torch.arange(self.num_pages * page_size, device=self.pages.device)
            last_SQ1 = self.positions_SQ[:, :, None]
            hidden_SQL = keys_L > last_SQ1
            if window is not None:
                hidden_SQL |= keys_L <= last_SQ1 - window
            mask_SQL = torch.zeros(hidden_SQL.shape, dtype=dtype, device=self.pages.device)
            self.masks[key] = mask_SQL.masked_fill_(hidden_SQL, float("-inf"))[:, None]
        return self.masks[key]


def _make_group(batch: AttentionBatch, table_SP: Tensor, members: list[int], row_starts: list[int]) -> _Group:
    device = batch.slots_T.device
    num_queries = max(batch.query_lens[member] for member in members)
    num_pages = max(-(-batch.kv_lens[member] // batch.page_size) for member in members)
    host = torch.tensor(
        [(row_starts[member], batch.query_lens[member], batch.kv_lens[member]) for member in members],
        dtype=torch.int64,
    )
    starts_S1, lens_S1, kv_lens_S1 = host.to(device)[:, :, None].unbind(1)
    index_Q = torch.arange(num_queries, device=device)
    real_SQ = index_Q < lens_S1
    index_SQ = torch.minimum(index_Q.expand_as(real_SQ), lens_S1 - 1)
    chosen = torch.tensor(members, device=device)
    rows = _consecutive_rows(batch, members, row_starts)
    return _Group(
        rows=rows,
        is_fresh=rows is not None and all(batch.kv_lens[member] == num_queries for member in members),
        rows_SQ=starts_S1 + index_SQ,
        row_is_real_SQ=real_SQ,
        positions_SQ=kv_lens_S1 - lens_S1 + index_SQ,
        pages=table_SP[chosen, :num_pages].flatten(),
        num_pages=num_pages,
        blocks=_query_blocks(batch, members, num_queries),
    )


def _consecutive_rows(batch: AttentionBatch, members: list[int], row_starts: list[int]) -> slice | None:
    start, length = row_starts[members[0]], batch.query_lens[members[0]]
    for place, member in enumerate(members):
        if row_starts[member] != start + place * length or batch.query_lens[member] != length:
            return None
    return slice(start, start + len(members) * length)


def _query_blocks(batch: AttentionBatch, members: list[int], num_queries: int) -> tuple[tuple[int, int, int], ...]:
    """Padding queries repeat their sequence's last one, and see no more than it does."""
    blocks = []
    for start in range(0, num_queries, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, num_queries)
        behind = (max(0, batch.query_lens[member] - end) for member in members)
        reach = max(batch.kv_lens[member] - left for member, left in zip(members, behind, strict=True))
        blocks.append((start, end, reach))
    return tuple(blocks)


def _make_groups(batch: AttentionBatch) -> list[_Group]:
    members_of: dict[tuple[int, int], list[int]] = {}
    row_starts: list[int] = []
    num_rows = 0
    for sequence, (query_len, kv_len) in enumerate(zip(batch.query_lens, batch.kv_lens, strict=True)):
        row_starts.append(num_rows)
        num_rows += query_len
        shape = (_bucket(query_len), _bucket(-(-kv_len // batch.page_size)))
        members_of.setdefault(shape, []).append(sequence)
    table_SP = batch.used_pages_SP()
    return [_make_group(batch, table_SP, members, row_starts) for members in members_of.values()]


def _as_sequences(rows_TND: Tensor, group: _Group) -> Tensor:
    """[T, ...] -> [S, Q, ...], padded queries as their sequence's last."""
    if group.rows is None:
        return rows_TND[group.rows_SQ]
    return rows_TND[group.rows].view(*group.rows_SQ.shape, *rows_TND.shape[1:])


class _PagedStep(AttentionStep):
    def __init__(self, batch: AttentionBatch, kv: Sequence[KvPages], scale: float) -> None:
        self.batch = batch
        self.kv = kv
        self.scale = scale
        self.groups = _make_groups(batch)
        self.kv_write = KvWrite.plan(batch.slots_T, batch.page_size)
        self.is_one_group = len(self.groups) == 1 and self.groups[0].rows == slice(0, batch.num_rows)

    def attend(self, layer: int, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None = None) -> Tensor:
        pages = self.kv[layer]
        self.kv_write.write(k_TKD, pages.k_PBKD, pages.k_scale)
        self.kv_write.write(v_TKD, pages.v_PBKD, pages.v_scale)
        out_TND = None if self.is_one_group else torch.zeros_like(q_TND)
        for group in self.groups:
            if group.is_fresh and k_TKD.dtype == pages.k_PBKD.dtype:
                k_SKLD, v_SKLD = (_as_sequences(rows, group).transpose(1, 2) for rows in (k_TKD, v_TKD))
            else:
                k_SKLD = from_pages(self._gather(pages.k_PBKD, group), q_TND, pages.k_scale)
                v_SKLD = from_pages(self._gather(pages.v_PBKD, group), q_TND, pages.v_scale)
            out_SQND = self._attend_group(group, _as_sequences(q_TND, group), (k_SKLD, v_SKLD), window)
            if out_TND is None:
                return out_SQND.flatten(0, 1)
            if group.rows is not None:
                out_TND[group.rows] = out_SQND.flatten(0, 1)
            else:
                out_TND[group.rows_SQ[group.row_is_real_SQ]] = out_SQND[group.row_is_real_SQ]
        assert out_TND is not None, "one group returns its own"
        return out_TND

    def _attend_group(
        self, group: _Group, q_SQND: Tensor, kv_SKLD: tuple[Tensor, Tensor], window: int | None
    ) -> Tensor:
        num_sequences, num_queries, num_heads, head_dim = q_SQND.shape
        k_SKLD, v_SKLD = kv_SKLD
        mask_S1QL = group.mask(window, self.batch.page_size, q_SQND.dtype)[..., : k_SKLD.shape[2]]
        num_kv_heads = k_SKLD.shape[1]
        if num_queries == 1:  # the query heads of one KV head become its queries, so that no key is repeated
            q_SKGD = q_SQND.view(num_sequences, num_kv_heads, -1, head_dim)
            mask = mask_S1QL.expand(-1, -1, q_SKGD.shape[2], -1)
            out = functional.scaled_dot_product_attention(q_SKGD, k_SKLD, v_SKLD, attn_mask=mask, scale=self.scale)
            return out.reshape(num_sequences, 1, num_heads, head_dim)
        q_SNQD = q_SQND.transpose(1, 2)
        parts = [
            functional.scaled_dot_product_attention(
                q_SNQD[:, :, start:end],
                k_SKLD[:, :, :reach],
                v_SKLD[:, :, :reach],
                attn_mask=mask_S1QL[:, :, start:end, :reach],
                scale=self.scale,
                enable_gqa=num_heads != num_kv_heads,
            ).transpose(1, 2)
            for start, end, reach in group.blocks
        ]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _gather(self, pages_PBKD: Tensor, group: _Group) -> Tensor:
        """This group's K or V as [S, K, L, D] (a view of what was gathered)."""
        num_kv_heads, head_dim = pages_PBKD.shape[2:]
        rows = pages_PBKD.flatten(1).index_select(0, group.pages)
        num_keys = group.num_pages * self.batch.page_size
        return rows.view(-1, num_keys, num_kv_heads, head_dim).transpose(1, 2)


class TorchPagedAttention(AttentionBackend):
    """The fast twin; its results differ from `TorchInvariantAttention` by rounding only."""

    name = "torch-paged"

    def begin(self, batch: AttentionBatch, kv: Sequence[KvPages], scale: float) -> AttentionStep:
        return _PagedStep(batch, kv, scale)
