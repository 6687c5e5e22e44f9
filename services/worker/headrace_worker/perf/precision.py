"""How many bits a stored number takes and which arithmetic it is multiplied in. Knows no card and no kernel.

Weight bytes are nominal: parameters x bits / 8. Scales (one per channel or group) are not in it; `int4-g128` counts
16 bits of scale and 4 bits of zero point per group of 128, as AWQ and GPTQ checkpoints store them.
"""

from dataclasses import dataclass

from headrace_worker.perf.errors import UnknownNameError


@dataclass(frozen=True)
class Precision:
    """`bits` stored per number; `compute` is the arithmetic that a card able to do it would use."""

    name: str
    bits: float
    compute: str

    @property
    def num_bytes(self) -> float:
        """Bytes per stored number; a fraction below 8 bits."""
        return self.bits / 8


WEIGHT_PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("fp32", 32, "fp32"),
        Precision("bf16", 16, "fp16"),
        Precision("fp16", 16, "fp16"),
        Precision("fp8", 8, "fp8"),
        Precision("int4", 4, "fp16"),
        Precision("int4-g128", 4 + (16 + 4) / 128, "fp16"),
    )
}
KV_PRECISIONS = {name: WEIGHT_PRECISIONS[name] for name in ("fp32", "bf16", "fp16", "fp8")}


def weight_precision(name: str, field: str = "precision") -> Precision:
    """The weight precision called `name`; `UnknownNameError` on `field` otherwise."""
    return _named(WEIGHT_PRECISIONS, name, field)


def kv_precision(name: str, field: str = "kv_precision") -> Precision:
    """The KV precision called `name`; `UnknownNameError` on `field` otherwise."""
    return _named(KV_PRECISIONS, name, field)


def _named(table: dict[str, Precision], name: str, field: str) -> Precision:
    try:
        return table[name.lower()]
    except KeyError:
        raise UnknownNameError(field, f"{name!r} is not one of {', '.join(table)}") from None
