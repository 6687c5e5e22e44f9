"""Linear layers, whole at tensor-parallel size 1. They know their shard; they do not know which model they serve."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from headrace_worker.kernels.quantized_gemm import QuantizedGemm
from headrace_worker.layers.setting import LayerSetting
from headrace_worker.layers.weight_slot import Region, WeightLayer, WeightSlot, copy_into, rows_slot


class _Linear(WeightLayer):
    """Weight [out, in] of this rank until `pack`, then whatever the gemm reads."""

    def __init__(self, in_size: int, out_size: int, bias: bool, setting: LayerSetting) -> None:
        super().__init__()
        self.setting = setting
        self.gemm = setting.quantized or setting.gemm
        self.weight: Tensor = setting.staged(out_size, in_size)
        self.grid = setting.empty_grid(out_size, in_size)
        self.bias: Tensor | None = setting.empty(out_size) if bias else None

    def pack(self) -> None:
        if isinstance(self.gemm, QuantizedGemm):
            device = self.setting.device
            grid = None if self.grid is None else self.grid.to(device)
            self.weight, self.grid = self.gemm.pack_on(self.weight.to(device), grid), None
        else:
            self.weight = self.gemm.pack(self.weight)

    def multiply(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        return self.gemm.multiply(x_TI, self.weight, bias_O)

    def grid_parts(self) -> dict[str, Tensor]:
        """What a quantized checkpoint says beside the weight, by the ends of the names: [O, G] each."""
        if self.grid is None:
            return {}
        zeros = {} if self.grid.zeros_OG is None else {"weight_zero": self.grid.zeros_OG}
        return {"weight_scale": self.grid.scales_OG, **zeros}


@dataclass(frozen=True)
class Part:
    """One checkpoint tensor of a merged column-parallel layer: full rows, and the group of ranks that split them.

    With fewer splits than ranks (grouped KV heads), neighbouring ranks hold the same rows.
    """

    full_rows: int
    num_splits: int

    def local_rows(self) -> int:
        assert self.full_rows % self.num_splits == 0, f"{self.full_rows} rows in {self.num_splits} splits"
        return self.full_rows // self.num_splits


class ColumnParallelLinear(_Linear):
    """Several checkpoint tensors of the same input, stacked: one product instead of several. Output is sharded."""

    def __init__(self, in_size: int, parts: Mapping[str, Part], bias: bool, setting: LayerSetting) -> None:
        self.parts = dict(parts)
        self.sizes = [part.local_rows() for part in self.parts.values()]
        super().__init__(in_size, sum(self.sizes), bias, setting)
        self.in_size = in_size

    def slots(self, own_name: str) -> dict[str, WeightSlot]:
        slots: dict[str, WeightSlot] = {}
        target_start = 0
        shard = self.setting.shard
        for name, part in self.parts.items():
            rows = part.local_rows()
            start = shard.rank * part.num_splits // shard.size * rows
            own = slice(target_start, target_start + rows)
            slots[f"{name}.weight"] = rows_slot((part.full_rows, self.in_size), self.weight[own], start, rows)
            if self.bias is not None:
                slots[f"{name}.bias"] = rows_slot((part.full_rows,), self.bias[own], start, rows)
            for end, target in self.grid_parts().items():
                shape = (part.full_rows, target.shape[1])
                slots[f"{name}.{end}"] = rows_slot(shape, target[own], start, rows)
            target_start += rows
        return slots

    def forward(self, x_TI: Tensor) -> Tensor:
        return self.multiply(x_TI, self.bias)

    def forward_in_panels(self, x_TI: Tensor) -> Tensor:
        """[T, out], or [P, T, out / P]."""
        return self.gemm.multiply_in_panels(x_TI, self.weight, self.bias)


class RowParallelLinear(_Linear):
    """Input is sharded; the ranks' partial sums are added by one all-reduce, and the bias once."""

    def __init__(self, in_size: int, out_size: int, bias: bool, setting: LayerSetting) -> None:
        self.full_shape = (out_size, in_size)
        super().__init__(setting.shard.part(in_size, "input width"), out_size, bias, setting)
        if setting.quantized is not None and setting.shard.size > 1:
            self.gemm = setting.quantized.across(setting.shard.maximum)

    def slots(self, own_name: str) -> dict[str, WeightSlot]:
        width = self.weight.shape[1]
        columns = Region(1, self.setting.shard.rank * width, width)
        slots = {f"{own_name}.weight": WeightSlot(self.full_shape, copy_into(self.weight), columns)}
        if self.bias is not None:
            slots[f"{own_name}.bias"] = WeightSlot(self.full_shape[:1], copy_into(self.bias))
        for end, target in self.grid_parts().items():
            own = target.shape[1]
            per_group = self.setting.grid is not None and self.setting.grid.group_size > 0
            size = self.setting.shard.size if per_group else 1
            region = Region(1, self.setting.shard.rank * own, own) if per_group else None
            slots[f"{own_name}.{end}"] = WeightSlot((self.full_shape[0], own * size), copy_into(target), region)
        return slots

    def forward(self, x_TI: Tensor) -> Tensor:
        shard = self.setting.shard
        return shard.all_reduce(self.multiply(x_TI, self.bias if shard.rank == 0 else None))


def qkv_parts(num_heads: int, num_kv_heads: int, head_dim: int, setting: LayerSetting) -> dict[str, Part]:
    """Query heads are split over all ranks; KV heads as far as they go, then shared by neighbouring ranks."""
    size = setting.shard.size
    kv_splits = min(size, num_kv_heads)
    kv_part = Part(num_kv_heads * head_dim, kv_splits)
    return {"q_proj": Part(num_heads * head_dim, size), "k_proj": kv_part, "v_proj": kv_part}
