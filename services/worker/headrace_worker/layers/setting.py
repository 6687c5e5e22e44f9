"""What every layer is built with: where it lives, its dtype, its shard and stage, how it multiplies."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace_worker.kernels.gemm import Gemm
from headrace_worker.kernels.quantized_gemm import Grid, QuantizedGemm
from headrace_worker.kernels.row_ops import RowOps, TorchRows
from headrace_worker.layers.stage import Stage


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class Shard:
    """One rank of a tensor-parallel group of `size`. At size 1 the collectives are the identity.

    Every rank calls them in the same order with the same shapes.
    """

    rank: int = 0
    size: int = 1
    all_reduce: Callable[[Tensor], Tensor] = _unchanged
    """Sum over the group, same shape."""
    gather: Callable[[Tensor], Tensor] = _unchanged
    """Concatenate the group's last dimensions, in rank order, on rank 0; the others get what they gave."""
    maximum: Callable[[Tensor], Tensor] = _unchanged
    """The largest of each number over the group, same shape."""

    def part(self, total: int, what: str) -> int:
        """This rank's share of a dimension."""
        assert total % self.size == 0, f"{what} {total} is not divisible by {self.size} ranks"
        return total // self.size

    def padded_part(self, total: int) -> int:
        """Every rank's share of a dimension whose end may be padded."""
        return -(-total // self.size)


@dataclass(frozen=True)
class StoredGrid:
    """Scales of a checkpoint's linear weights: one per `group_size` inputs, or (0) per output channel."""

    group_size: int
    has_zeros: bool

    def num_groups(self, in_size: int) -> int:
        if not self.group_size:
            return 1
        assert in_size % self.group_size == 0, f"{in_size} inputs are no multiple of groups of {self.group_size}"
        return in_size // self.group_size


@dataclass(frozen=True)
class LayerSetting:
    """Handed unchanged from the model to each layer."""

    gemm: Gemm
    rows: RowOps = field(default_factory=TorchRows)
    quantized: QuantizedGemm | None = None
    """How linear layers multiply, if not as the output head does."""
    grid: StoredGrid | None = None
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

    def staged(self, *shape: int) -> Tensor:
        """Storage of a linear weight until it is packed: codes are made layer by layer, so the host holds the rest."""
        device = self.device if self.quantized is None else torch.device("cpu")
        return torch.empty(*shape, dtype=self.dtype, device=device)

    def empty_grid(self, out_size: int, in_size: int) -> Grid | None:
        """Storage for what the checkpoint says of a linear weight's codes."""
        if self.grid is None:
            return None
        shape = (out_size, self.grid.num_groups(in_size))
        return Grid(torch.empty(shape), torch.empty(shape) if self.grid.has_zeros else None)
