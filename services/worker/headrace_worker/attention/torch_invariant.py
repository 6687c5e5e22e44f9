"""Batch-invariant paged attention in torch: an output's bits depend on its own sequence and position alone.

Queries stand in tiles of fixed height and keys in tiles of fixed width, both cut at multiples of absolute positions,
so that a query meets the same products of the same shapes, in the same order, however its step was composed. The
softmax is accumulated tile after tile (online softmax, Milakov & Gimelshein 2018); a tile behind a query's position
multiplies by one and adds zero, which changes nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from headrace_worker.attention.base import AttentionBackend, AttentionBatch, AttentionStep, KvPages
from headrace_worker.kernels.kv_write import KvWrite, from_pages

QUERY_TILE = 16
KEY_TILE = 64


class _QueryTiles:
    """The step's rows, arranged in M tiles of QUERY_TILE absolute positions; places without a row stay empty."""

    def __init__(self, batch: AttentionBatch) -> None:
        device = batch.slots_T.device
        sequence_of_tile: list[int] = []
        first_position_of_tile: list[int] = []
        tile_of_row: list[int] = []
        place_of_row: list[int] = []
        for sequence, (query_len, kv_len) in enumerate(zip(batch.query_lens, batch.kv_lens, strict=True)):
            first_tile = (kv_len - query_len) // QUERY_TILE
            base = len(sequence_of_tile) - first_tile
            for position in range(kv_len - query_len, kv_len):
                tile_of_row.append(base + position // QUERY_TILE)
                place_of_row.append(position % QUERY_TILE)
            last_tile = (kv_len - 1) // QUERY_TILE
            sequence_of_tile += [sequence] * (last_tile - first_tile + 1)
            first_position_of_tile += [tile * QUERY_TILE for tile in range(first_tile, last_tile + 1)]
        self.num_tiles = len(sequence_of_tile)
        self.num_key_tiles = -(-max(batch.kv_lens, default=0) // KEY_TILE)
        self.sequence_M = torch.tensor(sequence_of_tile, dtype=torch.int64, device=device)
        self.rows = torch.tensor(tile_of_row, device=device) * QUERY_TILE + torch.tensor(place_of_row, device=device)
        first_M = torch.tensor(first_position_of_tile, dtype=torch.int64, device=device)
        self.positions_MQ = first_M[:, None] + torch.arange(QUERY_TILE, device=device)

    def arrange(self, q_TND: Tensor, num_kv_heads: int) -> Tensor:
        """Rows [T, N, D] -> tiles [M * K, G * Q, D]."""
        num_heads, head_dim = q_TND.shape[1:]
        tiles = q_TND.new_zeros(self.num_tiles * QUERY_TILE, num_heads, head_dim)
        tiles[self.rows] = q_TND[: self.rows.shape[0]]
        tiles_MQKGD = tiles.view(self.num_tiles, QUERY_TILE, num_kv_heads, -1, head_dim)
        return tiles_MQKGD.permute(0, 2, 3, 1, 4).reshape(self.num_tiles * num_kv_heads, -1, head_dim)

    def restore(self, tiles: Tensor, like_TND: Tensor, num_kv_heads: int) -> Tensor:
        """The inverse of `arrange`; padding rows are zero."""
        num_heads, head_dim = like_TND.shape[1:]
        tiles_MKGQD = tiles.view(self.num_tiles, num_kv_heads, -1, QUERY_TILE, head_dim)
        flat = tiles_MKGQD.permute(0, 3, 1, 2, 4).reshape(-1, num_heads, head_dim)
        out_TND = torch.zeros_like(like_TND)
        out_TND[: self.rows.shape[0]] = flat[self.rows]
        return out_TND


class _InvariantStep(AttentionStep):
    def __init__(self, batch: AttentionBatch, kv: Sequence[KvPages], scale: float) -> None:
        self.kv = kv
        self.scale = scale
        self.tiles = _QueryTiles(batch)
        self.kv_write = KvWrite.plan(batch.slots_T, batch.page_size)
        self.key_slots_ML = self._key_slots(batch)
        self.hidden: dict[int | None, Tensor] = {}

    def _key_slots(self, batch: AttentionBatch) -> Tensor:
        """int64 [M, L]: the slot of each key position of each tile's sequence; null slots behind its pages."""
        device = batch.slots_T.device
        num_keys = self.tiles.num_key_tiles * KEY_TILE
        num_pages = -(-num_keys // batch.page_size)
        missing = max(num_pages - batch.page_table_SP.shape[1], 0)
        table_SP = functional.pad(batch.used_pages_SP(), (0, missing))[:, :num_pages]
        offsets_B = torch.arange(batch.page_size, device=device)
        slots_SL = (table_SP[:, :, None] * batch.page_size + offsets_B).flatten(1)[:, :num_keys]
        return slots_SL[self.tiles.sequence_M]

    def attend(self, layer: int, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None = None) -> Tensor:
        pages = self.kv[layer]
        self.kv_write.write(k_TKD, pages.k_PBKD, pages.k_scale)
        self.kv_write.write(v_TKD, pages.v_PBKD, pages.v_scale)
        num_kv_heads = pages.k_PBKD.shape[2]
        queries = self.tiles.arrange(q_TND, num_kv_heads) * self.scale
        best = queries.new_full((*queries.shape[:2], 1), float("-inf"))
        total = torch.zeros_like(best)
        mixed = torch.zeros_like(queries)
        for start in range(0, self.key_slots_ML.shape[1], KEY_TILE):
            keys = from_pages(self._gather(pages.k_PBKD, start), queries, pages.k_scale)
            values = from_pages(self._gather(pages.v_PBKD, start), queries, pages.v_scale)
            scores = torch.bmm(queries, keys.transpose(1, 2))
            scores = scores.masked_fill_(self._hidden(start, window, queries.shape, num_kv_heads), float("-inf"))
            new_best = torch.maximum(best, scores.amax(-1, keepdim=True))
            # A row that has seen no key yet has -inf here; zero instead keeps exp(-inf - x) at 0, not NaN.
            pivot = new_best.masked_fill(new_best == float("-inf"), 0.0)
            kept = torch.exp(best - pivot)
            shares = torch.exp(scores - pivot)
            total = total * kept + shares.sum(-1, keepdim=True)
            mixed = mixed * kept + torch.bmm(shares, values)
            best = new_best
        return self.tiles.restore(mixed / total.masked_fill(total == 0, 1.0), q_TND, num_kv_heads)

    def _gather(self, pages_PBKD: Tensor, start: int) -> Tensor:
        """Keys or values of one key tile for every query tile: [M * K, KEY_TILE, D]."""
        slots_ML = self.key_slots_ML[:, start : start + KEY_TILE]
        rows_MLKD = pages_PBKD.flatten(0, 1)[slots_ML]
        return rows_MLKD.transpose(1, 2).flatten(0, 1)

    def _hidden(self, start: int, window: int | None, shape: torch.Size, num_kv_heads: int) -> Tensor:
        """bool [M * K, G * Q, KEY_TILE]: keys that a query may not see."""
        if window not in self.hidden:
            keys_L = torch.arange(self.key_slots_ML.shape[1], device=self.key_slots_ML.device)
            last_MQ1 = self.tiles.positions_MQ[:, :, None]
            hidden_MQL = keys_L > last_MQ1
            if window is not None:
                hidden_MQL |= keys_L <= last_MQ1 - window
            self.hidden[window] = hidden_MQL
        hidden_MQL = self.hidden[window][:, :, start : start + KEY_TILE]
        num_groups = shape[1] // QUERY_TILE
        hidden_MKGQL = hidden_MQL[:, None, None].expand(-1, num_kv_heads, num_groups, -1, -1)
        return hidden_MKGQL.reshape(shape[0], shape[1], KEY_TILE)


class TorchInvariantAttention(AttentionBackend):
    """The twin for batch-invariant mode."""

    name = "torch-invariant"

    def begin(self, batch: AttentionBatch, kv: Sequence[KvPages], scale: float) -> AttentionStep:
        return _InvariantStep(batch, kv, scale)
