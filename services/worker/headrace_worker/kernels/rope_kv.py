"""Rotary position embedding of queries and keys, and the write of keys and values to their pages, in one launch.

Rotation by halves (Su et al. 2021; the convention of Hugging Face checkpoints). With fp8 pages, keys and values are
divided by their scale and rounded to E4M3 on the way.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace_worker.kernels.case import FP8_TARGETS, TARGETS, Case, aligned_of, typed
from headrace_worker.kernels.kv_write import to_e4m3
from headrace_worker.kernels.wide import widened


def rope_kv_twin(
    q_TND: Tensor,
    k_TKD: Tensor,
    v_TKD: Tensor,
    cos_sin_TD: Tensor,
    slots_T: Tensor,
    pages: tuple[Tensor, Tensor],
    kv_scales: tuple[float, float] = (1.0, 1.0),
) -> Tensor:
    """Rotated queries; keys and values go to `pages`, each [P, B, K, D], at `slots_T`.

    cos_sin_TD is float32, the first half cosines. A row whose slot lies in page 0 is padding and writes nothing.
    """
    half = q_TND.shape[-1] // 2
    cos_T1D, sin_T1D = cos_sin_TD[:, None, :half], cos_sin_TD[:, None, half:]

    def turned(x_THD: Tensor) -> Tensor:
        low, high = widened(x_THD[..., :half]), widened(x_THD[..., half:])
        return torch.cat((low * cos_T1D - high * sin_T1D, high * cos_T1D + low * sin_T1D), dim=-1).to(x_THD.dtype)

    page_size = pages[0].shape[1]
    real_T = slots_T >= page_size
    for rows_TKD, pages_PBKD, scale in ((turned(k_TKD), pages[0], kv_scales[0]), (v_TKD, pages[1], kv_scales[1])):
        rows = rows_TKD[real_T]
        is_fp8 = pages_PBKD.dtype == torch.float8_e4m3fn
        pages_PBKD.flatten(0, 1)[slots_T[real_T]] = to_e4m3(rows, scale) if is_fp8 else rows.to(pages_PBKD.dtype)
    return turned(q_TND)


@triton.jit
def _rope_kv(
    q, k, v, cos_sin, slots, out_q, k_pages, v_pages,
    stride_q, stride_k, stride_v, k_scale, v_scale,
    NUM_Q: tl.constexpr, NUM_KV: tl.constexpr, HALF: tl.constexpr, HALF_WIDTH: tl.constexpr,
    PAGE_TOKENS: tl.constexpr, IS_FP8: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lane = tl.arange(0, HALF_WIDTH)
    mask = lane < HALF
    cos = tl.load(cos_sin + row * 2 * HALF + lane, mask=mask, other=0.0)
    sin = tl.load(cos_sin + row * 2 * HALF + HALF + lane, mask=mask, other=0.0)
    if head < NUM_Q:
        source = q + row * stride_q + head * 2 * HALF
        low = tl.load(source + lane, mask=mask, other=0.0).to(tl.float32)
        high = tl.load(source + HALF + lane, mask=mask, other=0.0).to(tl.float32)
        target = out_q + (row * NUM_Q + head) * 2 * HALF
        tl.store(target + lane, (low * cos - high * sin).to(out_q.dtype.element_ty), mask=mask)
        tl.store(target + HALF + lane, (high * cos + low * sin).to(out_q.dtype.element_ty), mask=mask)
    else:
        kv_head = head - NUM_Q
        slot = tl.load(slots + row)
        place = (slot * NUM_KV + kv_head) * 2 * HALF
        is_real = slot >= PAGE_TOKENS
        key = k + row * stride_k + kv_head * 2 * HALF
        raw_low = tl.load(key + lane, mask=mask, other=0.0)
        raw_high = tl.load(key + HALF + lane, mask=mask, other=0.0)
        # Rounded to the model's dtype before it goes to pages of another, as if it had been kept.
        k_low = (raw_low.to(tl.float32) * cos - raw_high.to(tl.float32) * sin).to(raw_low.dtype).to(tl.float32)
        k_high = (raw_high.to(tl.float32) * cos + raw_low.to(tl.float32) * sin).to(raw_low.dtype).to(tl.float32)
        value = v + row * stride_v + kv_head * 2 * HALF
        v_low = tl.load(value + lane, mask=mask, other=0.0).to(tl.float32)
        v_high = tl.load(value + HALF + lane, mask=mask, other=0.0).to(tl.float32)
        if IS_FP8:
            k_low, k_high = tl.clamp(k_low / k_scale, -448.0, 448.0), tl.clamp(k_high / k_scale, -448.0, 448.0)
            v_low, v_high = tl.clamp(v_low / v_scale, -448.0, 448.0), tl.clamp(v_high / v_scale, -448.0, 448.0)
        kind = k_pages.dtype.element_ty
        tl.store(k_pages + place + lane, k_low.to(kind), mask=mask & is_real)
        tl.store(k_pages + place + HALF + lane, k_high.to(kind), mask=mask & is_real)
        tl.store(v_pages + place + lane, v_low.to(kind), mask=mask & is_real)
        tl.store(v_pages + place + HALF + lane, v_high.to(kind), mask=mask & is_real)


def rope_kv(
    q_TND: Tensor,
    k_TKD: Tensor,
    v_TKD: Tensor,
    cos_sin_TD: Tensor,
    slots_T: Tensor,
    pages: tuple[Tensor, Tensor],
    kv_scales: tuple[float, float] = (1.0, 1.0),
) -> Tensor:
    """As `rope_kv_twin`; the heads of a row lie together, rows may lie apart (views of one product)."""
    num_rows, num_heads, head_dim = q_TND.shape
    num_kv_heads, half = k_TKD.shape[1], head_dim // 2
    out_TND = torch.empty((num_rows, num_heads, head_dim), dtype=q_TND.dtype, device=q_TND.device)
    if num_rows:
        _rope_kv[(num_rows, num_heads + num_kv_heads)](
            q_TND, k_TKD, v_TKD, cos_sin_TD, slots_T, out_TND, pages[0], pages[1],
            q_TND.stride(0), k_TKD.stride(0), v_TKD.stride(0), kv_scales[0], kv_scales[1],
            NUM_Q=num_heads, NUM_KV=num_kv_heads, HALF=half, HALF_WIDTH=triton.next_power_of_2(half),
            PAGE_TOKENS=pages[0].shape[1], IS_FP8=pages[0].dtype == torch.float8_e4m3fn, num_warps=1,
        )  # fmt: skip
    return out_TND


def cases() -> list[Case]:
    found = []
    for dtype, kv_dtype in (("bf16", "bf16"), ("fp16", "fp16"), ("bf16", "fp8e4nv")):
        for num_q, num_kv, head_dim in ((32, 8, 128), (16, 8, 128), (9, 3, 64)):
            signature = {
                **typed(p_fp32="cos_sin", p_i64="slots", i32="stride_q stride_k stride_v", fp32="k_scale v_scale"),
                **dict.fromkeys(("q", "k", "v", "out_q"), f"*{dtype}"),
                **dict.fromkeys(("k_pages", "v_pages"), f"*{kv_dtype}"),
            }
            constants = {"NUM_Q": num_q, "NUM_KV": num_kv, "HALF": head_dim // 2, "HALF_WIDTH": head_dim // 2}
            found.append(
                Case(
                    f"rope_kv {dtype} to {kv_dtype} {num_q}/{num_kv} x {head_dim}",
                    _rope_kv,
                    signature,
                    {**constants, "PAGE_TOKENS": 16, "IS_FP8": kv_dtype == "fp8e4nv"},
                    num_warps=1,
                    aligned=aligned_of(signature, "stride_q stride_k stride_v"),
                    targets=FP8_TARGETS if kv_dtype == "fp8e4nv" else TARGETS,
                )
            )
    return found
