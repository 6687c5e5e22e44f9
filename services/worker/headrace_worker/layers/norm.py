"""Root-mean-square norm (Zhang & Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight, in float32 inside."""

from torch import Tensor

from headrace_worker.layers.setting import LayerSetting
from headrace_worker.layers.weight_slot import WeightLayer, WeightSlot, copy_into


class RMSNorm(WeightLayer):
    """Over the last dimension of [..., size]."""

    def __init__(self, size: int, eps: float, setting: LayerSetting) -> None:
        super().__init__()
        self.eps = eps
        self.rows = setting.rows
        self.weight: Tensor = setting.empty(size)

    def slots(self, own_name: str) -> dict[str, WeightSlot]:
        return {f"{own_name}.weight": WeightSlot(tuple(self.weight.shape), copy_into(self.weight))}

    def forward(self, x: Tensor) -> Tensor:
        return self.rows.norm(x, self.weight, self.eps)

    def add(self, x_TE: Tensor, delta_TE: Tensor | None) -> tuple[Tensor, Tensor]:
        """(norm of x + delta, x + delta): a block's output joins the stream and the next block's input is normed."""
        if delta_TE is None:
            return self.rows.norm(x_TE, self.weight, self.eps), x_TE
        return self.rows.add_norm(x_TE, delta_TE, self.weight, self.eps)
