"""What fraction of the published peaks kernels reach: fitted once on H100 tables, carried over without refitting.

The numbers below are printed by `python benchmarks/roofline_fit.py` from `benchmarks/data/roofline` (vLLM 0.24.0
kernels and NCCL 2.29.2, measured on H100 SXM by the aiconfigurator project, Apache-2.0); `docs/roofline.md` says how
and how well.
Launch and latency constants are seconds and carried over as they are.
"""

from dataclasses import dataclass

from headrace_worker.perf.attention import AttentionEfficiency
from headrace_worker.perf.cards import Card
from headrace_worker.perf.collectives import CollectiveEfficiency
from headrace_worker.perf.gemm import GemmEfficiency
from headrace_worker.perf.precision import Precision


@dataclass(frozen=True)
class Efficiency:
    """Products in 16-bit and 8-bit arithmetic, attention over 16-bit and 8-bit KV, collectives."""

    gemm_wide: GemmEfficiency
    gemm_fp8: GemmEfficiency
    attention_wide: AttentionEfficiency
    attention_fp8: AttentionEfficiency
    collective: CollectiveEfficiency

    def gemm(self, compute: str) -> GemmEfficiency:
        """Constants of a product done in `compute` arithmetic."""
        return self.gemm_fp8 if compute == "fp8" else self.gemm_wide

    def attention(self, kv: Precision) -> AttentionEfficiency:
        """Constants of attention over KV stored as `kv`."""
        return self.attention_fp8 if kv.bits <= 8 else self.attention_wide


H100_FIT = Efficiency(
    gemm_wide=GemmEfficiency(3.131e-6, 2.719e-10, 0.9044, 0.8163, 0.0, 3.331, 0.0),
    gemm_fp8=GemmEfficiency(5.273e-6, 2.765e-10, 0.8574, 0.6928, 0.7544, 5.369, 4.111),
    attention_wide=AttentionEfficiency(1.256e-5, 3.839e-9, 0.7018, 0.5012, 1.164e-5, 1.965e-8, 3.046e-10, 0.9219),
    attention_fp8=AttentionEfficiency(1.455e-5, 8.22e-9, 0.6996, 0.317, 1.366e-5, 2.496e-8, 3.519e-10, 0.8283),
    collective=CollectiveEfficiency(4.367e-6, 0.04258, 0.547, 2.068e-6, 0.5659, 0.3315),
)

# A measured card's rates are achieved ones; what is left is the cost of issuing an operation, of the order of 10 us.
_MEASURED_GEMM = GemmEfficiency(10e-6, 0.0, 1.0, 1.0, 0.0, 4.0)
_MEASURED_ATTENTION = AttentionEfficiency(20e-6, 0.0, 0.5, 1.0, 20e-6, 0.0, 0.0, 0.5)
MEASURED = Efficiency(
    gemm_wide=_MEASURED_GEMM,
    gemm_fp8=_MEASURED_GEMM,
    attention_wide=_MEASURED_ATTENTION,
    attention_fp8=_MEASURED_ATTENTION,
    collective=CollectiveEfficiency(50e-6, 0.5, 1.0, 50e-6, 1.0, 0.0),
)


def efficiency_of(card: Card) -> Efficiency:
    """The constants that belong to a card: the H100 fit, or unity where its rates were measured."""
    return MEASURED if card.is_measured else H100_FIT
