"""Rows times a weight of 4-bit codes in groups along its input: dequantized tile by tile, on its way to the product.

Torch's own `_weight_int4pack_mm` takes bfloat16 alone, no zero points between codes, and serves few rows; this one
takes what AWQ and GPTQ checkpoints hold. Many rows are served by dequantizing once and torch's product.
"""

from dataclasses import dataclass
from itertools import product

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace_worker.kernels.capability import capability
from headrace_worker.kernels.case import Case, aligned_of, typed
from headrace_worker.kernels.int4_weight import Int4Weight

_MULTIPROCESSORS = {80: 108, 89: 142, 90: 132, 100: 148}


def int4_product_twin(x_TI: Tensor, weight: Int4Weight) -> Tensor:
    """[T, out] in the dtype of x."""
    return x_TI @ weight.dequantize().to(x_TI.dtype)


@triton.jit
def _int4_product(
    x, words, scales, zeros, out, num_rows, out_size, in_size, stride_x, split_size, group_size,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(2)
    inner = tl.arange(0, INNER)
    row_mask, column_mask = row < num_rows, column < out_size
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    start = split * split_size
    for at in range(start, tl.minimum(start + split_size, in_size), INNER):
        place = at + inner
        mine = row_mask[:, None] & (place < in_size)[None, :]
        rows = tl.load(x + row[:, None].to(tl.int64) * stride_x + place[None, :], mask=mine, other=0.0)
        wanted = (place < in_size)[:, None] & column_mask[None, :]
        word = tl.load(words + (place // 8)[:, None].to(tl.int64) * out_size + column[None, :], mask=wanted, other=0)
        code = (word >> ((place % 8) * 4)[:, None]) & 15
        group = at // group_size * out_size + column
        scale = tl.load(scales + group, mask=column_mask, other=0.0).to(tl.float32)
        zero = tl.load(zeros + group, mask=column_mask, other=0.0).to(tl.float32)
        weight = (code.to(tl.float32) - zero[None, :]) * scale[None, :]
        total += tl.dot(rows, weight.to(rows.dtype), input_precision=PRECISION)
    target = out + (split * num_rows + row)[:, None].to(tl.int64) * out_size + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


@dataclass(frozen=True)
class _Shape:
    """Of one program."""

    rows: int
    columns: int
    inner: int


def _shape(num_rows: int, group_size: int) -> _Shape:
    """A tile of the inner dimension lies within a group."""
    inner = min(64, group_size)
    return _Shape(16, 64, inner) if num_rows <= 16 else _Shape(64, 64, inner)


def int4_product(x_TI: Tensor, weight: Int4Weight) -> Tensor:
    """As `int4_product_twin`; rows of x may lie apart. Splits of the inner dimension are added in a fixed order."""
    num_rows, in_size = x_TI.shape
    out_size = weight.words_WO.shape[1]
    shape = _shape(num_rows, weight.group_size)
    tiles = (triton.cdiv(num_rows, shape.rows), triton.cdiv(out_size, shape.columns))
    wanted = 2 * _MULTIPROCESSORS.get(capability(x_TI.device), 2)
    num_splits = max(1, min(8, wanted // max(1, tiles[0] * tiles[1]), in_size // (4 * shape.inner)))
    split_size = triton.cdiv(triton.cdiv(in_size, num_splits), shape.inner) * shape.inner
    dtype = x_TI.dtype if num_splits == 1 else torch.float32
    out_ZTO = torch.empty((num_splits, num_rows, out_size), dtype=dtype, device=x_TI.device)
    if num_rows:
        _int4_product[(*tiles, num_splits)](
            x_TI, weight.words_WO, weight.scales_GO, weight.zeros_GO, out_ZTO, num_rows, out_size, in_size,
            x_TI.stride(0), split_size, weight.group_size, ROWS=shape.rows, COLUMNS=shape.columns, INNER=shape.inner,
            PRECISION="ieee" if x_TI.dtype == torch.float32 else "tf32", num_warps=4, num_stages=3,
        )  # fmt: skip
    return out_ZTO[0] if num_splits == 1 else out_ZTO.sum(0).to(x_TI.dtype)


def cases() -> list[Case]:
    sizes = product(("bf16", "fp16"), (16, 64), (32, 128), (False, True))
    return [_case(dtype, _shape(num_rows, group_size), is_split) for dtype, num_rows, group_size, is_split in sizes]


def _case(dtype: str, shape: _Shape, is_split: bool) -> Case:
    out = "fp32" if is_split else dtype
    signature = {
        **typed(**{f"p_{dtype}": "x scales zeros"}, p_i32="words"),
        "out": f"*{out}",
        **typed(i32="num_rows out_size in_size stride_x split_size group_size"),
    }
    constants = {"ROWS": shape.rows, "COLUMNS": shape.columns, "INNER": shape.inner, "PRECISION": "tf32"}
    aligned = aligned_of(signature, "out_size in_size stride_x split_size group_size")
    name = f"int4_product {dtype} to {out}, {shape.rows} x {shape.columns} x {shape.inner}"
    return Case(name, _int4_product, signature, constants, num_warps=4, num_stages=3, aligned=aligned)
