"""Attention of one query per sequence over paged keys and values, the keys split among programs.

Each split keeps a running maximum and sum (online softmax, Milakov & Gimelshein 2018); a second kernel joins the splits
by their log-sum-exp (Flash-Decoding, Dao et al. 2023). The query heads of one KV head share its keys: they are the rows
of one product.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace_worker.kernels.case import FP8_TARGETS, TARGETS, Case, aligned_of, typed
from headrace_worker.kernels.wide import widened

KEY_TILE = 64
MAX_SPLITS = 32
_LEAST_ROWS = 16  # of a matrix product on tensor cores


@dataclass(frozen=True)
class PagedKv:
    """Keys and values of one layer, [P, B, K, D] each, with the scales of fp8 pages."""

    k_PBKD: Tensor
    v_PBKD: Tensor
    k_scale: float = 1.0
    v_scale: float = 1.0


def paged_decode_twin(
    q_SND: Tensor, kv: PagedKv, table_SP: Tensor, kv_lens_S: Tensor, scale: float, window: int | None = None
) -> Tensor:
    """[S, N, D], float32 inside. A sequence of length 0 (padding of a captured batch) gives zeros."""
    num_kv_heads = kv.k_PBKD.shape[2]
    out_SND = torch.zeros_like(q_SND)
    for index, kv_len in enumerate(kv_lens_S.tolist()):
        if not kv_len:
            continue
        pages = table_SP[index].to(torch.int64)
        k_LKD = kv.k_PBKD[pages].flatten(0, 1)[:kv_len].to(widened(q_SND).dtype) * kv.k_scale
        v_LKD = kv.v_PBKD[pages].flatten(0, 1)[:kv_len].to(widened(q_SND).dtype) * kv.v_scale
        first = max(0, kv_len - window) if window is not None else 0
        q_KGD = widened(q_SND[index]).view(num_kv_heads, -1, q_SND.shape[-1])
        weights_KGL = torch.softmax(torch.einsum("kgd,lkd->kgl", q_KGD, k_LKD[first:]) * scale, dim=-1)
        out = torch.einsum("kgl,lkd->kgd", weights_KGL, v_LKD[first:])
        out_SND[index] = out.reshape(q_SND.shape[1:]).to(q_SND.dtype)
    return out_SND


@triton.jit
def _decode_split(
    q, k_pages, v_pages, table, kv_lens, partial, log_sums,
    stride_q, stride_table, scale, split_tokens, window,
    NUM_KV: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr, HEAD_WIDTH: tl.constexpr, PAGE_TOKENS: tl.constexpr,
    KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)
    kv_len = tl.load(kv_lens + sequence)
    first = tl.maximum(0, kv_len - window)
    first_tile = first // KEYS * KEYS
    # Every sequence shares out its own keys: what a launch says is the least of a split, which a captured graph keeps.
    share = tl.maximum(split_tokens, tl.cdiv(tl.cdiv(kv_len - first_tile, KEYS), num_splits) * KEYS)
    start = first_tile + split * share
    end = tl.minimum(start + share, kv_len)
    row = tl.arange(0, GROUP_ROWS)
    lane = tl.arange(0, HEAD_WIDTH)
    key = tl.arange(0, KEYS)
    heads = kv_head * GROUP + row
    row_mask, lane_mask = row < GROUP, lane < HEAD_DIM
    query = tl.load(
        q + sequence * stride_q + heads[:, None] * HEAD_DIM + lane[None, :],
        mask=row_mask[:, None] & lane_mask[None, :],
        other=0.0,
    )
    largest = tl.full((GROUP_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_ROWS,), tl.float32)
    gathered = tl.zeros((GROUP_ROWS, HEAD_WIDTH), tl.float32)
    for at in range(start, end, KEYS):
        position = at + key
        is_key = (position < end) & (position >= first)
        page = tl.load(table + sequence * stride_table + position // PAGE_TOKENS, mask=position < end, other=0)
        place = ((page.to(tl.int64) * PAGE_TOKENS + position % PAGE_TOKENS) * NUM_KV + kv_head) * HEAD_DIM
        wanted = (position < end)[:, None] & lane_mask[None, :]
        keys = tl.load(k_pages + place[:, None] + lane[None, :], mask=wanted, other=0.0).to(query.dtype)
        score = tl.dot(query, tl.trans(keys), input_precision=PRECISION) * scale
        score = tl.where(is_key[None, :], score, float("-inf"))
        higher = tl.maximum(largest, tl.max(score, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp(score - base[:, None])
        shrink = tl.exp(largest - base)
        total = total * shrink + tl.sum(weight, axis=1)
        values = tl.load(v_pages + place[:, None] + lane[None, :], mask=wanted & is_key[:, None], other=0.0)
        gathered = gathered * shrink[:, None]
        gathered += tl.dot(weight.to(query.dtype), values.to(query.dtype), input_precision=PRECISION)
        largest = higher
    safe = tl.where(total == 0.0, 1.0, total)
    place_out = (sequence * NUM_KV * GROUP + heads) * num_splits + split
    tl.store(
        partial + place_out[:, None] * HEAD_DIM + lane[None, :],
        gathered / safe[:, None],
        mask=row_mask[:, None] & lane_mask[None, :],
    )
    tl.store(log_sums + place_out, tl.where(total == 0.0, float("-inf"), largest + tl.log(safe)), mask=row_mask)


@triton.jit
def _decode_join(
    partial, log_sums, out, num_splits, v_scale,
    HEAD_DIM: tl.constexpr, HEAD_WIDTH: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    lane = tl.arange(0, HEAD_WIDTH)
    log_sum = tl.load(log_sums + place * num_splits + split, mask=split < num_splits, other=float("-inf"))
    top = tl.max(log_sum, axis=0)
    top = tl.where(top == float("-inf"), 0.0, top)
    share = tl.exp(log_sum - top)
    whole = tl.sum(share, axis=0)
    share = share / tl.where(whole == 0.0, 1.0, whole)
    parts = tl.load(
        partial + (place * num_splits + split)[:, None] * HEAD_DIM + lane[None, :],
        mask=(split < num_splits)[:, None] & (lane < HEAD_DIM)[None, :],
        other=0.0,
    )
    joined = tl.sum(parts * share[:, None], axis=0) * v_scale
    tl.store(out + place * HEAD_DIM + lane, joined.to(out.dtype.element_ty), mask=lane < HEAD_DIM)


@dataclass(frozen=True)
class SplitPlan:
    """How the keys are shared out: into so many splits, of at least so many tokens each. No length is in it."""

    num_splits: int
    split_tokens: int = KEY_TILE


def plan_splits(num_sequences: int, num_kv_heads: int, longest: int, num_multiprocessors: int) -> SplitPlan:
    """Enough programs for two per multiprocessor, none with less than one tile of keys of the longest sequence."""
    wanted = -(-2 * num_multiprocessors // max(1, num_sequences * num_kv_heads))
    tiles = max(1, -(-longest // KEY_TILE))
    return SplitPlan(max(1, min(MAX_SPLITS, wanted, tiles)))


def paged_decode(
    q_SND: Tensor,
    kv: PagedKv,
    table_SP: Tensor,
    kv_lens_S: Tensor,
    scale: float,
    splits: SplitPlan,
    window: int | None = None,
) -> Tensor:
    """As `paged_decode_twin`. Tables and lengths are int32."""
    num_sequences, num_heads, head_dim = q_SND.shape
    num_kv_heads = kv.k_PBKD.shape[2]
    group = num_heads // num_kv_heads
    out_SND = torch.empty((num_sequences, num_heads, head_dim), dtype=q_SND.dtype, device=q_SND.device)
    if not num_sequences:
        return out_SND
    shape = (num_sequences, num_heads, splits.num_splits)
    partial = torch.empty((*shape, head_dim), dtype=torch.float32, device=q_SND.device)
    log_sums = torch.empty(shape, dtype=torch.float32, device=q_SND.device)
    width = triton.next_power_of_2(head_dim)
    _decode_split[(num_sequences, num_kv_heads, splits.num_splits)](
        q_SND, kv.k_PBKD, kv.v_PBKD, table_SP, kv_lens_S, partial, log_sums,
        q_SND.stride(0), table_SP.stride(0), scale * kv.k_scale, splits.split_tokens, window or 2**30,
        NUM_KV=num_kv_heads, GROUP=group, GROUP_ROWS=group_rows(group), HEAD_DIM=head_dim, HEAD_WIDTH=width,
        PAGE_TOKENS=kv.k_PBKD.shape[1], KEYS=KEY_TILE, PRECISION=precision(q_SND.dtype), num_warps=4, num_stages=3,
    )  # fmt: skip
    _decode_join[(num_sequences * num_heads,)](
        partial, log_sums, out_SND, splits.num_splits, kv.v_scale,
        HEAD_DIM=head_dim, HEAD_WIDTH=width, SPLITS=triton.next_power_of_2(splits.num_splits), num_warps=2,
    )  # fmt: skip
    return out_SND


def group_rows(group: int) -> int:
    """Rows of the product: a power of two, no fewer than tensor cores take."""
    return max(_LEAST_ROWS, triton.next_power_of_2(group))


def precision(dtype: torch.dtype) -> str:
    """Of a product: float32 is exact, for comparison with the twin."""
    return "ieee" if dtype == torch.float32 else "tf32"


def cases() -> list[Case]:
    found = []
    for dtype, kv_dtype in (("bf16", "bf16"), ("fp16", "fp16"), ("bf16", "fp8e4nv")):
        for num_kv, group, head_dim, page in ((8, 4, 128, 16), (8, 2, 128, 16), (3, 3, 64, 16), (8, 8, 128, 64)):
            found.append(_split_case(dtype, kv_dtype, num_kv, group, head_dim, page))
    for dtype in ("bf16", "fp16"):
        signature = {"out": f"*{dtype}", **typed(p_fp32="partial log_sums", i32="num_splits", fp32="v_scale")}
        constants = {"HEAD_DIM": 128, "HEAD_WIDTH": 128, "SPLITS": MAX_SPLITS}
        found.append(
            Case(f"decode_join {dtype}", _decode_join, signature, constants, num_warps=2, aligned=aligned_of(signature))
        )
    return found


def _split_case(dtype: str, kv_dtype: str, num_kv: int, group: int, head_dim: int, page: int) -> Case:
    signature = {
        "q": f"*{dtype}",
        **dict.fromkeys(("k_pages", "v_pages"), f"*{kv_dtype}"),
        **typed(p_i32="table kv_lens", p_fp32="partial log_sums", fp32="scale"),
        **typed(i32="stride_q stride_table split_tokens window"),
    }
    constants = {"NUM_KV": num_kv, "GROUP": group, "GROUP_ROWS": group_rows(group), "HEAD_DIM": head_dim}
    return Case(
        f"decode_split {dtype} on {kv_dtype} {num_kv * group}/{num_kv} x {head_dim}, pages of {page}",
        _decode_split,
        signature,
        {**constants, "HEAD_WIDTH": head_dim, "PAGE_TOKENS": page, "KEYS": KEY_TILE, "PRECISION": "tf32"},
        num_warps=4,
        num_stages=3,
        aligned=aligned_of(signature, "stride_q split_tokens"),
        targets=FP8_TARGETS if kv_dtype == "fp8e4nv" else TARGETS,
    )
