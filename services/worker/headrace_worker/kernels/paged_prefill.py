"""Causal attention of chunks of queries over paged keys and values, sequences of any length in one launch.

A program takes a tile of queries of one sequence and one head, and walks over the keys up to its last query
(FlashAttention-2, Dao 2023). Which tile belongs to which sequence is worked out on the host, once per step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace_worker.kernels.capability import capability
from headrace_worker.kernels.case import FP8_TARGETS, TARGETS, Case, aligned_of, typed
from headrace_worker.kernels.paged_decode import PagedKv, precision
from headrace_worker.kernels.wide import widened

QUERY_TILE = 64
KEY_TILES = {80: 32, 89: 32, 90: 64, 100: 64}
"""Keys of one turn of the loop: the older cards run out of registers with more."""


@dataclass(frozen=True)
class QueryTiles:
    """Per tile: its sequence, the row of its first query in the step, how many queries, position of the first."""

    tiles_M4: Tensor

    @classmethod
    def plan(
        cls,
        query_lens: Sequence[int],
        kv_lens: Sequence[int],
        first_rows: Sequence[int],
        device: torch.device | str = "cpu",
        only: Sequence[int] | None = None,
    ) -> "QueryTiles":
        """Of all sequences, or of `only` some. Longest walks first: the last programs to end are then short ones."""
        tiles = []
        for sequence in range(len(query_lens)) if only is None else only:
            query_len, kv_len, row = query_lens[sequence], kv_lens[sequence], first_rows[sequence]
            for start in range(0, query_len, QUERY_TILE):
                count = min(QUERY_TILE, query_len - start)
                tiles.append((sequence, row + start, count, kv_len - query_len + start))
        tiles.sort(key=lambda tile: -(tile[3] + tile[2]))
        return cls(torch.tensor(tiles, dtype=torch.int32, device=device).reshape(len(tiles), 4))


def paged_prefill_twin(
    q_TND: Tensor, kv: PagedKv, table_SP: Tensor, tiles: QueryTiles, scale: float, window: int | None = None
) -> Tensor:
    """[T, N, D], float32 inside; rows of no tile are zero. A query at position p sees max(0, p - window + 1) .. p."""
    out_TND = torch.zeros_like(q_TND)
    num_kv_heads = kv.k_PBKD.shape[2]
    for sequence, row, count, position in tiles.tiles_M4.tolist():
        pages = table_SP[sequence].to(torch.int64)
        reach = position + count
        k_LKD = kv.k_PBKD[pages].flatten(0, 1)[:reach].to(widened(q_TND).dtype) * kv.k_scale
        v_LKD = kv.v_PBKD[pages].flatten(0, 1)[:reach].to(widened(q_TND).dtype) * kv.v_scale
        q_QKGD = widened(q_TND[row : row + count]).view(count, num_kv_heads, -1, q_TND.shape[-1])
        score_KGQL = torch.einsum("qkgd,lkd->kgql", q_QKGD, k_LKD) * scale
        at_Q1, key_L = position + torch.arange(count)[:, None], torch.arange(reach)
        hidden_QL = key_L > at_Q1
        if window is not None:
            hidden_QL |= key_L <= at_Q1 - window
        weights = torch.softmax(score_KGQL.masked_fill(hidden_QL.to(score_KGQL.device), -torch.inf), dim=-1)
        out = torch.einsum("kgql,lkd->qkgd", weights, v_LKD)
        out_TND[row : row + count] = out.reshape(count, *q_TND.shape[1:]).to(q_TND.dtype)
    return out_TND


@triton.jit
def _prefill(
    q, k_pages, v_pages, table, tiles, out,
    stride_q, stride_out, stride_table, scale, v_scale, window,
    NUM_KV: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_WIDTH: tl.constexpr,
    PAGE_TOKENS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // GROUP
    sequence = tl.load(tiles + tile * 4).to(tl.int64)
    first_row = tl.load(tiles + tile * 4 + 1).to(tl.int64)
    count = tl.load(tiles + tile * 4 + 2)
    first_position = tl.load(tiles + tile * 4 + 3)
    row = tl.arange(0, QUERIES)
    lane = tl.arange(0, HEAD_WIDTH)
    key = tl.arange(0, KEYS)
    at = first_position + row
    row_mask, lane_mask = row < count, lane < HEAD_DIM
    both = row_mask[:, None] & lane_mask[None, :]
    query = tl.load(q + (first_row + row)[:, None] * stride_q + head * HEAD_DIM + lane[None, :], mask=both, other=0.0)
    largest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    gathered = tl.zeros((QUERIES, HEAD_WIDTH), tl.float32)
    reach = first_position + count
    start = tl.maximum(0, first_position - window + 1) // KEYS * KEYS
    for begin in range(start, reach, KEYS):
        position = begin + key
        page = tl.load(table + sequence * stride_table + position // PAGE_TOKENS, mask=position < reach, other=0)
        place = ((page.to(tl.int64) * PAGE_TOKENS + position % PAGE_TOKENS) * NUM_KV + kv_head) * HEAD_DIM
        wanted = (position < reach)[:, None] & lane_mask[None, :]
        keys = tl.load(k_pages + place[:, None] + lane[None, :], mask=wanted, other=0.0).to(query.dtype)
        score = tl.dot(query, tl.trans(keys), input_precision=PRECISION) * scale
        seen = (position[None, :] <= at[:, None]) & (position[None, :] > at[:, None] - window)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(largest, tl.max(score, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp(score - base[:, None])
        shrink = tl.exp(largest - base)
        total = total * shrink + tl.sum(weight, axis=1)
        values = tl.load(v_pages + place[:, None] + lane[None, :], mask=wanted, other=0.0).to(query.dtype)
        gathered = gathered * shrink[:, None]
        gathered += tl.dot(weight.to(query.dtype), values, input_precision=PRECISION)
        largest = higher
    result = gathered / tl.where(total == 0.0, 1.0, total)[:, None] * v_scale
    target = out + (first_row + row)[:, None] * stride_out + head * HEAD_DIM + lane[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=both)


def paged_prefill(
    q_TND: Tensor, kv: PagedKv, table_SP: Tensor, tiles: QueryTiles, scale: float, window: int | None = None
) -> Tensor:
    """As `paged_prefill_twin`; the table is int32. Keys of this step's rows are in their pages already."""
    _, num_heads, head_dim = q_TND.shape
    num_kv_heads = kv.k_PBKD.shape[2]
    out_TND = torch.zeros(q_TND.shape, dtype=q_TND.dtype, device=q_TND.device)
    num_tiles = tiles.tiles_M4.shape[0]
    keys = KEY_TILES.get(capability(q_TND.device), 32)
    if num_tiles:
        _prefill[(num_tiles, num_heads)](
            q_TND, kv.k_PBKD, kv.v_PBKD, table_SP, tiles.tiles_M4, out_TND,
            q_TND.stride(0), out_TND.stride(0), table_SP.stride(0), scale * kv.k_scale, kv.v_scale, window or 2**30,
            NUM_KV=num_kv_heads, GROUP=num_heads // num_kv_heads,
            HEAD_DIM=head_dim, HEAD_WIDTH=triton.next_power_of_2(head_dim), PAGE_TOKENS=kv.k_PBKD.shape[1],
            QUERIES=QUERY_TILE, KEYS=keys, PRECISION=precision(q_TND.dtype), num_warps=4, num_stages=2,
        )  # fmt: skip
    return out_TND


def cases() -> list[Case]:
    found = []
    for dtype, kv_dtype in (("bf16", "bf16"), ("fp16", "fp16"), ("bf16", "fp8e4nv")):
        able = FP8_TARGETS if kv_dtype == "fp8e4nv" else TARGETS
        for num_kv, group, head_dim, page in ((8, 4, 128, 16), (8, 2, 128, 16), (3, 3, 64, 16), (8, 8, 128, 64)):
            for keys in sorted(set(KEY_TILES.values())):
                targets = tuple(target for target in able if KEY_TILES[target] == keys)
                found.append(_case((dtype, kv_dtype), (num_kv, group, head_dim, page), keys, targets))
    return found


def _case(kinds: tuple[str, str], shape: tuple[int, int, int, int], keys: int, targets: tuple[int, ...]) -> Case:
    (dtype, kv_dtype), (num_kv, group, head_dim, page) = kinds, shape
    signature = {
        **dict.fromkeys(("q", "out"), f"*{dtype}"),
        **dict.fromkeys(("k_pages", "v_pages"), f"*{kv_dtype}"),
        **typed(p_i32="table tiles", i32="stride_q stride_out stride_table window", fp32="scale v_scale"),
    }
    constants = {"NUM_KV": num_kv, "GROUP": group, "HEAD_DIM": head_dim, "HEAD_WIDTH": head_dim}
    return Case(
        f"prefill {dtype} on {kv_dtype} {num_kv * group}/{num_kv} x {head_dim}, pages of {page}, {keys} keys",
        _prefill,
        signature,
        {**constants, "PAGE_TOKENS": page, "QUERIES": QUERY_TILE, "KEYS": keys, "PRECISION": "tf32"},
        num_warps=4,
        num_stages=2,
        aligned=aligned_of(signature, "stride_q stride_out"),
        targets=targets,
    )
