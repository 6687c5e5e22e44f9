"""Rows of activations to E4M3, each with a scale of its own, in one pass over memory (formats: Micikevicius 2022)."""

from itertools import product

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace_worker.kernels.case import FP8_TARGETS, Case, aligned_of, typed, warps_of
from headrace_worker.kernels.kv_write import E4M3_MAX, largest_of_rows, to_e4m3

_LEAST_SCALE = 1e-12


def quantize_rows_twin(x_TI: Tensor, largest_T1: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(codes [T, I], float32 scales [T, 1]): codes * scales is nearly x, the largest of a row keeps its value.

    `largest_T1` is what `largest_of_rows` says of the whole rows, where x has only a part of each.
    """
    wide = x_TI.to(torch.float32)
    largest_T1 = largest_of_rows(wide) if largest_T1 is None else largest_T1
    scale_T1 = (largest_T1 / E4M3_MAX).clamp(min=_LEAST_SCALE)
    return to_e4m3(wide, scale_T1), scale_T1


@triton.jit
def _quantize_rows(x, codes, scales, stride_x, size, WIDTH: tl.constexpr, GIVEN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    mask = lane < size
    value = tl.load(x + row * stride_x + lane, mask=mask, other=0.0).to(tl.float32)
    largest = tl.load(scales + row) if GIVEN else tl.max(tl.abs(value), axis=0)
    scale = tl.maximum(largest / 448.0, 1e-12)
    tl.store(codes + row * size + lane, tl.clamp(value / scale, -448.0, 448.0).to(codes.dtype.element_ty), mask=mask)
    tl.store(scales + row, scale)


def quantize_rows(x_TI: Tensor, largest_T1: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `quantize_rows_twin`; rows of x may lie apart, and what was given becomes the scales."""
    num_rows, size = x_TI.shape
    codes_TI = torch.empty((num_rows, size), dtype=torch.float8_e4m3fn, device=x_TI.device)
    given = largest_T1 is not None
    scale_T1 = torch.empty((num_rows, 1), dtype=torch.float32, device=x_TI.device) if largest_T1 is None else largest_T1
    assert scale_T1.shape == (num_rows, 1) and scale_T1.is_contiguous(), f"one number a row, not {scale_T1.shape}"
    if num_rows:
        width = triton.next_power_of_2(size)
        _quantize_rows[(num_rows,)](
            x_TI, codes_TI, scale_T1, x_TI.stride(0), size, WIDTH=width, GIVEN=given, num_warps=warps_of(width)
        )
    return codes_TI, scale_T1


def cases() -> list[Case]:
    found = []
    for dtype, given in product(("bf16", "fp16"), (False, True)):
        for width in (1024, 4096, 16384):
            signature = {
                **typed(**{f"p_{dtype}": "x"}, p_fp8e4nv="codes", p_fp32="scales", i32="stride_x size"),
            }
            found.append(
                Case(
                    f"quantize_rows {dtype} {width}{' of ranks' if given else ''}",
                    _quantize_rows,
                    signature,
                    {"WIDTH": width, "GIVEN": given},
                    num_warps=warps_of(width),
                    aligned=aligned_of(signature, "stride_x size"),
                    targets=FP8_TARGETS,
                )
            )
    return found
