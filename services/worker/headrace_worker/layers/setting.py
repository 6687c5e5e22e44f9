"""What every layer is built with: where it lives, its dtype, its shard and stage, how it multiplies."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace_worker.kernels.gemm import Gemm
from headrace_worker.kernels.row_ops import RowOps, TorchRows
from headrace_worker.layers.stage import Stage


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class Shard:
    """One rank of a tensor-parallel group of `size`. At size 1 both collectives are the identity.

    Every rank calls them in the same order with the same shapes.
    """

    rank: int = 0
    size: int = 1
    all_reduce: Callable[[Tensor], Tensor] = _unchanged
    """Sum over the group, same shape."""
    gather: Callable[[Tensor], Tensor] = _unchanged
    """Concatenate the group's last dimensions, in rank order, on rank 0; the others get what they gave."""

    def part(self, total: int, what: str) -> int:
        """This rank's share of a dimension."""
        assert total % self.size == 0, f"{what} {total} is not divisible by {self.size} ranks"
        return total // self.size

    def padded_part(self, total: int) -> int:
        """Every rank's share of a dimension whose end may be padded."""
        return -(-total // self.size)


@dataclass(frozen=True)
class LayerSetting:
    """Handed unchanged from the model to each layer."""

    gemm: Gemm
    rows: RowOps = field(default_factory=TorchRows)
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shard: Shard = field(default_factory=Shard)
    stage: Stage = field(default_factory=Stage)

    @property
    def rotary_dtype(self) -> torch.dtype:
        """Of cosines and sines: kernels compute in float32, torch in the model's dtype."""
        return torch.float32 if self.rows.name == "triton" else self.dtype

    def empty(self, *shape: int) -> Tensor:
        """Uninitialised storage for a weight; the loader proves that each is set exactly once."""
        return torch.empty(*shape, dtype=self.dtype, device=self.device)
