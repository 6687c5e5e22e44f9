"""SiLU of the gate times the up projection, read from one product (SwiGLU, Shazeer 2020)."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from headrace_worker.kernels.case import Case, aligned_of, typed
from headrace_worker.kernels.wide import widened

_WIDTH = 1024


def silu_mul_twin(gate_up_TI2: Tensor) -> Tensor:
    """[T, 2 I], gates first -> [T, I]; float32 inside, rounded once."""
    gate_TI, up_TI = widened(gate_up_TI2).chunk(2, dim=-1)
    return (functional.silu(gate_TI) * up_TI).to(gate_up_TI2.dtype)


@triton.jit
def _silu_mul(gate_up, out, size, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mask = lane < size
    gate = tl.load(gate_up + row * 2 * size + lane, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + lane, mask=mask, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * size + lane, product.to(out.dtype.element_ty), mask=mask)


def silu_mul(gate_up_TI2: Tensor) -> Tensor:
    """As `silu_mul_twin`, of a contiguous product."""
    num_rows, both = gate_up_TI2.shape
    size = both // 2
    out_TI = torch.empty((num_rows, size), dtype=gate_up_TI2.dtype, device=gate_up_TI2.device)
    if num_rows:
        _silu_mul[(num_rows, triton.cdiv(size, _WIDTH))](gate_up_TI2, out_TI, size, WIDTH=_WIDTH, num_warps=4)
    return out_TI


def cases() -> list[Case]:
    found = []
    for dtype in ("bf16", "fp16"):
        kinds = {f"p_{dtype}": "gate_up out"}
        signature = typed(**kinds, i32="size")
        aligned = aligned_of(signature, "size")
        found.append(Case(f"silu_mul {dtype}", _silu_mul, signature, {"WIDTH": _WIDTH}, aligned=aligned))
    return found
