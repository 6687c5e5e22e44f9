"""Row-wise operations that layers share, in torch: what the kernels of `fused_rows` do in one pass each.

Torch's `silu` rounds differently at the ends of its vector loops: batch-invariant mode has one of its own.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional


class RowOps(ABC):
    """Chosen once, at start."""

    name: str
    reads_panels = False
    """Whether `silu_mul` takes products in panels, too."""

    @abstractmethod
    def norm(self, x: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        """Root-mean-square norm over the last dimension of [..., E]."""

    @abstractmethod
    def add_norm(self, x_TE: Tensor, delta_TE: Tensor, weight_E: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(norm of x + delta, x + delta)."""

    @abstractmethod
    def silu_mul(self, gate_up_TI2: Tensor) -> Tensor:
        """[T, 2 I], gates first -> silu(gate) * up, [T, I]. In panels: [P, T, 2 I / P]. May overwrite the product."""


def invariant_silu(x: Tensor) -> Tensor:
    """x * sigmoid(x) from operations whose bits do not depend on an element's place in memory."""
    return x / (1.0 + torch.exp(-x))


class TorchRows(RowOps):
    """For any device."""

    name = "torch"
    reads_panels = True

    def __init__(self, invariant: bool = False) -> None:
        self._silu = invariant_silu if invariant else functional.silu

    def norm(self, x: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.float32)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * scale).to(x.dtype).mul_(weight_E)

    def add_norm(self, x_TE: Tensor, delta_TE: Tensor, weight_E: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total_TE = x_TE + delta_TE
        return self.norm(total_TE, weight_E, eps), total_TE

    def silu_mul(self, gate_up_TI2: Tensor) -> Tensor:
        if gate_up_TI2.dim() == 2:
            gate_TI, up_TI = gate_up_TI2.chunk(2, dim=-1)
            return self._silu(gate_TI).mul_(up_TI)
        gate_PTW, up_PTW = gate_up_TI2.chunk(2)
        num_panels, num_rows, width = gate_PTW.shape
        out_TPW = gate_PTW.new_empty(num_rows, num_panels, width)
        torch.mul(self._silu(gate_PTW), up_PTW, out=out_TPW.transpose(0, 1))
        return out_TPW.flatten(1)
