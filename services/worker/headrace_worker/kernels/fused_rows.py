"""Row-wise operations by our Triton kernels; the interpreter runs them anywhere, slowly."""

from torch import Tensor

from headrace_worker.kernels.rms_norm import rms_norm
from headrace_worker.kernels.row_ops import RowOps
from headrace_worker.kernels.silu_mul import silu_mul


class TritonRows(RowOps):
    """One launch each."""

    name = "triton"

    def norm(self, x: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        return rms_norm(x, None, weight_E, eps)[0]

    def add_norm(self, x_TE: Tensor, delta_TE: Tensor, weight_E: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return rms_norm(x_TE, delta_TE, weight_E, eps)

    def silu_mul(self, gate_up_TI2: Tensor) -> Tensor:
        return silu_mul(gate_up_TI2)
