"""Root-mean-square norm (Zhang & Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight, in float32 inside."""

import torch
from torch import Tensor

from headrace_worker.layers.setting import LayerSetting
from headrace_worker.layers.weight_slot import WeightLayer, WeightSlot, copy_into


class RMSNorm(WeightLayer):
    """Over the last dimension of [..., size]."""

    def __init__(self, size: int, eps: float, setting: LayerSetting) -> None:
        super().__init__()
        self.eps = eps
        self.weight: Tensor = setting.empty(size)

    def slots(self, own_name: str) -> dict[str, WeightSlot]:
        return {f"{own_name}.weight": WeightSlot(tuple(self.weight.shape), copy_into(self.weight))}

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight
