"""What the makers publish about each card: dense (not sparse) peak rates, memory and links. Knows no efficiency.

Sources, read as "dense" figures and link rates per direction (half of the advertised total):
H100 SXM5 80GB, H200 SXM 141GB: NVIDIA H100 / H200 Tensor Core GPU datasheets
  (1979 and 3958 TFLOP/s "with sparsity"; 3.35 and 4.8 TB/s; NVLink 900 GB/s).
A100 SXM4 80GB: NVIDIA A100 datasheet (312 TFLOP/s; 2039 GB/s; NVLink 600 GB/s).
B200 SXM 180GB: NVIDIA DGX B200 datasheet
  (per GPU 4.5 PFLOP/s "with sparsity" bf16; 8 TB/s; NVLink 1.8 TB/s).
L40S: NVIDIA L40S datasheet (362.05 / 733 TFLOP/s dense; 864 GB/s; PCIe 4.0 x16 64 GB/s, no NVLink).
RTX 4090: NVIDIA Ada GPU architecture whitepaper
  (165.2 TFLOP/s fp16 and 330.3 fp8 with fp32 accumulation; 1008 GB/s; PCIe 4.0 x16).
Multiprocessor counts and clocks come from the same documents' architecture tables.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from headrace_worker.perf.errors import PerfError, UnknownNameError

GIB = 2**30
# More memory than any machine has is a slip of the keyboard.
MOST_GIB = 1_000_000


@dataclass(frozen=True)
class Card:
    """Rates are per device: FLOP/s by arithmetic, bytes/s of memory, bytes/s per direction of the link to its peers.

    `max_fast_group` devices share the fast link; a larger tensor group is not modelled. `num_multiprocessors` sizes the
    waves of a tiled kernel (cores, for a CPU). `is_measured` marks rates that are achieved rather than peak.
    """

    name: str
    memory_bytes: int
    flops: tuple[tuple[str, float], ...]
    memory_bandwidth: float
    link_bandwidth: float
    num_multiprocessors: int
    max_fast_group: int = 8
    is_measured: bool = False

    def peak_flops(self, compute: str) -> float:
        """FLOP/s of `compute`, or of the next wider arithmetic the card has."""
        return self._peaks[compute]

    @cached_property
    def _peaks(self) -> dict[str, float]:
        table = dict(self.flops)
        assert "fp32" in table, f"card {self.name} declares no fp32 rate"
        fp16 = table.get("fp16", table["fp32"])
        return {"fp8": table.get("fp8", fp16), "fp16": fp16, "fp32": table["fp32"]}

    def has(self, compute: str) -> bool:
        """Whether the tensor cores do `compute` themselves."""
        return compute in dict(self.flops)

    def with_memory_gib(self, gib: float) -> "Card":
        """The same card with another memory size."""
        if not 0 < gib <= MOST_GIB:
            raise PerfError("hbm_gib", f"must be above 0 and at most {MOST_GIB:,}, not {gib}")
        return replace(self, memory_bytes=int(gib * GIB))


@dataclass(frozen=True)
class CpuMeasurement:
    """What a probe measured on this host: usable bytes, float32 FLOP/s, bytes/s of reads, bytes/s of copies, cores."""

    memory_bytes: int
    flops_fp32: float
    memory_bandwidth: float
    copy_bandwidth: float
    num_cores: int


def _tera(fp16: float, fp32: float, fp8: float | None = None) -> tuple[tuple[str, float], ...]:
    rates = [("fp16", fp16 * 1e12), ("fp32", fp32 * 1e12)]
    return tuple(rates + ([("fp8", fp8 * 1e12)] if fp8 else []))


CARDS = {
    card.name: card
    for card in (
        Card("h100-80gib", 80 * GIB, _tera(989.4, 66.9, 1978.9), 3.35e12, 450e9, 132),
        Card("h200-141gib", 141 * GIB, _tera(989.4, 66.9, 1978.9), 4.8e12, 450e9, 132),
        Card("a100-80gib", 80 * GIB, _tera(312.0, 19.5), 2.039e12, 300e9, 108),
        Card("b200-180gib", 180 * GIB, _tera(2250.0, 80.0, 4500.0), 8.0e12, 900e9, 148),
        Card("l40s-48gib", 48 * GIB, _tera(362.05, 91.6, 733.0), 0.864e12, 32e9, 142),
        Card("rtx4090-24gib", 24 * GIB, _tera(165.2, 82.6, 330.3), 1.008e12, 32e9, 128),
    )
}
CPU = "cpu"
CARD_NAMES = (*CARDS, CPU)


def cpu_card(measurement: CpuMeasurement) -> Card:
    """The card of this host; achieved rates stand in for peaks."""
    return Card(
        name=CPU,
        memory_bytes=measurement.memory_bytes,
        flops=(("fp32", measurement.flops_fp32),),
        memory_bandwidth=measurement.memory_bandwidth,
        link_bandwidth=measurement.copy_bandwidth,
        num_multiprocessors=measurement.num_cores,
        is_measured=True,
    )


def card_named(name: str, field: str = "gpu") -> Card:
    """A published card; `UnknownNameError` for others. `cpu` needs a measurement: use `cpu_card`."""
    try:
        return CARDS[name.lower()]
    except KeyError:
        raise UnknownNameError(field, f"{name!r} is not one of {', '.join(CARD_NAMES)}") from None
