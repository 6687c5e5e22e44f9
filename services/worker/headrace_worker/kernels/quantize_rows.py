"""Rows of activations to E4M3, each with a scale of its own, in one pass over memory (formats: Micikevicius 2022)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace_worker.kernels.case import FP8_TARGETS, Case, aligned_of, typed, warps_of
from headrace_worker.kernels.kv_write import E4M3_MAX, to_e4m3

_LEAST_SCALE = 1e-12


def quantize_rows_twin(x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """(codes [T, I], float32 scales [T, 1]): codes * scales is nearly x, the largest of a row keeps its value."""
    wide = x_TI.to(torch.float32)
    scale_T1 = (wide.abs().amax(-1, keepdim=True) / E4M3_MAX).clamp(min=_LEAST_SCALE)
    return to_e4m3(wide, scale_T1), scale_T1


@triton.jit
def _quantize_rows(x, codes, scales, stride_x, size, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    mask = lane < size
    value = tl.load(x + row * stride_x + lane, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), axis=0) / 448.0, 1e-12)
    tl.store(codes + row * size + lane, tl.clamp(value / scale, -448.0, 448.0).to(codes.dtype.element_ty), mask=mask)
    tl.store(scales + row, scale)


def quantize_rows(x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """As `quantize_rows_twin`; rows of x may lie apart."""
    num_rows, size = x_TI.shape
    codes_TI = torch.empty((num_rows, size), dtype=torch.float8_e4m3fn, device=x_TI.device)
    scale_T1 = torch.empty((num_rows, 1), dtype=torch.float32, device=x_TI.device)
    if num_rows:
        width = triton.next_power_of_2(size)
        _quantize_rows[(num_rows,)](
            x_TI, codes_TI, scale_T1, x_TI.stride(0), size, WIDTH=width, num_warps=warps_of(width)
        )
    return codes_TI, scale_T1


def cases() -> list[Case]:
    found = []
    for dtype in ("bf16", "fp16"):
        for width in (1024, 4096, 16384):
            signature = {
                **typed(**{f"p_{dtype}": "x"}, p_fp8e4nv="codes", p_fp32="scales", i32="stride_x size"),
            }
            found.append(
                Case(
                    f"quantize_rows {dtype} {width}",
                    _quantize_rows,
                    signature,
                    {"WIDTH": width},
                    num_warps=warps_of(width),
                    aligned=aligned_of(signature, "stride_x size"),
                    targets=FP8_TARGETS,
                )
            )
    return found
