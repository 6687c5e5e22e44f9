"""RMSNorm with the residual addition before it, in one pass over memory (Zhang & Sennrich 2019)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace_worker.kernels.case import Case, aligned_of, typed, warps_of


def rms_norm_twin(x_TE: Tensor, residual_TE: Tensor | None, weight_E: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm of x + residual, x + residual), the sum in the dtype of x, the norm in float32 inside."""
    total_TE = x_TE if residual_TE is None else x_TE + residual_TE
    wide = total_TE.to(torch.float32)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x_TE.dtype) * weight_E, total_TE


@triton.jit
def _rms_norm(x, residual, weight, out, total, stride_x, size, eps, HAS_RESIDUAL: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    mask = lane < size
    value = tl.load(x + row * stride_x + lane, mask=mask, other=0.0)
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
    """As `rms_norm_twin`; rows of x may lie apart, those of the residual are contiguous."""
    num_rows, size = x_TE.shape
    out_TE = torch.empty((num_rows, size), dtype=x_TE.dtype, device=x_TE.device)
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
            size,
            eps,
            HAS_RESIDUAL=residual_TE is not None,
            WIDTH=width,
            num_warps=warps_of(width),
        )
    return out_TE, total_TE


def cases() -> list[Case]:
    found = []
    for dtype in ("bf16", "fp16"):
        for width in (1024, 2048, 4096, 8192, 16384):
            kinds = {f"p_{dtype}": "x residual weight out total"}
            signature = typed(**kinds, i32="stride_x size", fp32="eps")
            found.append(
                Case(
                    f"rms_norm {dtype} {width}",
                    _rms_norm,
                    signature,
                    {"HAS_RESIDUAL": True, "WIDTH": width},
                    num_warps=warps_of(width),
                    aligned=aligned_of(signature, "size stride_x"),
                )
            )
    return found
