"""Time of one dense matrix product and of one elementwise pass on a card. Knows no model.

Two ceilings (Williams, Waterman, Patterson, "Roofline", CACM 2009), blended by a p-norm since neither is met sharply,
plus what a kernel pays whatever its size: the launch, the serial walk of a tile along k, the idle part of the last
wave.
"""

from dataclasses import dataclass

from headrace_worker.perf.cards import Card

TILE = 128
OUTPUT_BYTES = 2


@dataclass(frozen=True)
class GemmEfficiency:
    """Fractions of the published peaks that a library's kernels reach, and fixed costs in seconds.

    `wave` is the exponent on (whole waves / waves used): 1 when every tile is as large as assumed, 0 when split-k fills
    the card. `quantize_passes` counts readings of the 16-bit input spent on quantizing it for an 8-bit product.
    """

    launch_s: float
    serial_s_per_k: float
    memory: float
    compute: float
    wave: float
    blend: float
    quantize_passes: float = 0.0


@dataclass(frozen=True)
class Gemm:
    """C[m,n] = A[m,k] B[k,n]: `weight_bits` per element of B, `input_bytes` per element of A, arithmetic `compute`."""

    m: int
    n: int
    k: int
    weight_bits: float
    input_bytes: float
    compute: str

    @property
    def flops(self) -> float:
        """Multiply-adds counted twice."""
        return 2.0 * self.m * self.n * self.k

    @property
    def memory_bytes(self) -> float:
        """Each operand moved once."""
        weights = self.n * self.k * self.weight_bits / 8
        return weights + self.m * self.k * self.input_bytes + self.m * self.n * OUTPUT_BYTES


def gemm_time_s(gemm: Gemm, card: Card, efficiency: GemmEfficiency) -> float:
    """Seconds of `gemm` alone on an idle device."""
    if gemm.m == 0:
        return 0.0
    # Smooth on purpose: the expected last wave is half full, and one more row never makes a product faster.
    tiles = max(1.0, gemm.m / TILE) * max(1.0, gemm.n / TILE)
    slots = card.num_multiprocessors
    rounded = max(slots, tiles + slots / 2) / tiles
    memory_s = gemm.memory_bytes / (efficiency.memory * card.memory_bandwidth) + efficiency.serial_s_per_k * gemm.k
    compute_s = gemm.flops / (efficiency.compute * card.peak_flops(gemm.compute)) * rounded**efficiency.wave
    quantize_s = efficiency.quantize_passes * gemm.m * gemm.k * OUTPUT_BYTES / card.memory_bandwidth
    return efficiency.launch_s + blended(memory_s, compute_s, efficiency.blend) + quantize_s


def elementwise_time_s(num_bytes: float, card: Card, efficiency: GemmEfficiency) -> float:
    """Seconds of one kernel that reads and writes `num_bytes` in all: the launch and the traffic."""
    return efficiency.launch_s + num_bytes / (efficiency.memory * card.memory_bandwidth)


def blended(first: float, second: float, power: float) -> float:
    """p-norm of two non-negative times: their maximum for a large power, without overflow for tiny values."""
    larger, smaller = max(first, second), min(first, second)
    if larger == 0.0:
        return 0.0
    return float(larger * (1.0 + (smaller / larger) ** power) ** (1.0 / power))
