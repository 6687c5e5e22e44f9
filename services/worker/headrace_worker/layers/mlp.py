"""The gated feed-forward block (SwiGLU, Shazeer 2020): down(silu(gate(x)) * up(x))."""

from torch import Tensor, nn

from headrace_worker.layers.linear import ColumnParallelLinear, Part, RowParallelLinear
from headrace_worker.layers.setting import LayerSetting


class GatedMLP(nn.Module):
    """[T, E] -> [T, E]; gate and up are one product."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool, setting: LayerSetting) -> None:
        super().__init__()
        self.rows = setting.rows
        part = Part(intermediate_size, setting.shard.size)
        self.gate_up_proj = ColumnParallelLinear(hidden_size, {"gate_proj": part, "up_proj": part}, bias, setting)
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, bias, setting)

    def forward(self, x_TE: Tensor) -> Tensor:
        both = self.gate_up_proj.forward_in_panels(x_TE) if self.rows.reads_panels else self.gate_up_proj(x_TE)
        out: Tensor = self.down_proj(self.rows.silu_mul(both))
        return out
