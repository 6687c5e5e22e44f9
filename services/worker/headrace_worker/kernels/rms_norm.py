"""RMSNorm with the residual addition before it, in one pass over memory (Zhang & Sennrich 2019)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace_worker.kernels.case import Case, aligned_of, typed, warps_of
from headrace_worker.kernels.wide import widened


def rms_norm_twin(x_TE: Tensor, residual_TE: Tensor | None, weight_E: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm of x + residual, x + residual), the sum in the dtype of x, the norm in float32 inside."""
    total_TE = x_TE if residual_TE is None else x_TE + residual_TE
    wide = widened(total_TE)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x_TE.dtype) * weight_E, total_TE


@triton.jit
def _rms_norm(
    x, residual, weight, out, total, stride_x, stride_head, size, eps,
    HEADS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x += row // HEADS * stride_x + row % HEADS * stride_head
    lane = tl.arange(0, WIDTH)
    mask = lane < size
    value = tl.load(x + lane, mask=mask, other=0.0)
    if HAS_RESIDUAL:
        # Summed in float32 and rounded once, as the twin does.
        value = (value.to(tl.float32) + tl.load(residual + row * size + lane, mask=mask, other=0.0).to(tl.float32)).to(
            value.dtype
        )
        tl.store(total + row * size + lane, value, mask=mask)
    wide = value.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / size + eps)
    normed = (wide * scale).to(value.dtype).to(tl.float32)
    weighted = normed * tl.load(weight + lane, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * size + lane, weighted.to(value.dtype), mask=mask)


def rms_norm(x_TE: Tensor, residual_TE: Tensor | None, weight_E: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `rms_norm_twin`, of [T, E] or of the heads of rows, [T, H, D]: rows of x may lie apart, and heads too.

    The residual is contiguous.
    """
    size = x_TE.shape[-1]
    heads = x_TE.shape[1] if x_TE.dim() == 3 else 1
    num_rows = x_TE.shape[0] * heads
    out_TE = torch.empty(x_TE.shape, dtype=x_TE.dtype, device=x_TE.device)
    total_TE = x_TE if residual_TE is None else torch.empty_like(out_TE)
    if num_rows:
        width = triton.next_power_of_2(size)
        _rms_norm[(num_rows,)](
            x_TE,
            residual_TE if residual_TE is not None else x_TE,
            weight_E,
            out_TE,
            total_TE,
            x_TE.stride(0),
            x_TE.stride(1) if x_TE.dim() == 3 else 0,
            size,
            eps,
            HEADS=heads,
            HAS_RESIDUAL=residual_TE is not None,
            WIDTH=width,
            num_warps=warps_of(width),
        )
    return out_TE, total_TE


def cases() -> list[Case]:
    sizes = [(width, 1, True) for width in (1024, 2048, 4096, 8192, 16384)]
    return [_case(dtype, *size) for dtype in ("bf16", "fp16") for size in (*sizes, (128, 16, False), (128, 8, False))]


def _case(dtype: str, width: int, heads: int, has_residual: bool) -> Case:
    signature = typed(**{f"p_{dtype}": "x residual weight out total"}, i32="stride_x stride_head size", fp32="eps")
    constants = {"HEADS": heads, "HAS_RESIDUAL": has_residual, "WIDTH": width}
    aligned = aligned_of(signature, "size stride_x stride_head")
    name = f"rms_norm {dtype} {width}" + (f" of {heads} heads" if heads > 1 else "")
    return Case(name, _rms_norm, signature, constants, num_warps=warps_of(width), aligned=aligned)
