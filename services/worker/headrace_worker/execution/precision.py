"""What weights and KV of a replica are kept as: the settings, what the checkpoint has, what the card can. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_worker.config import ConfigError, WorkerConfig
from headrace_worker.layers.setting import StoredGrid
from headrace_worker.models.model_config import ModelConfig
from headrace_worker.models.stored_quantization import StoredQuantization

_FP8_CAPABILITY = 89
_FP8_SIZE = 16
"""Of a side of a matrix in torch's fp8 product."""


@dataclass(frozen=True)
class Precision:
    """`quantization` is fp8, int4 or None; `grid` is given where the checkpoint's own codes are kept."""

    quantization: str | None
    grid: StoredGrid | None
    fp8_kv: bool

    @property
    def name(self) -> str:
        """As it stands in what a replica says of itself, and in the digest that separates its cached KV."""
        parts = [self.quantization or "none"] + (["fp8 kv"] if self.fp8_kv else [])
        return ", ".join(parts)


def choose_precision(config: WorkerConfig, stored: StoredQuantization | None, capability: int) -> Precision:
    """`capability` is the card's, times ten; 0 on CPU, where twins round alike. Raises ConfigError."""
    kind: str | None = config.quantization
    if kind == "auto":
        kind = stored.kind if stored is not None else None
    elif kind == "none":
        kind = None
    elif stored is not None and stored.kind != kind:
        raise ConfigError("quantization", f"is {kind}; the checkpoint's weights are {stored.kind} ({stored.method})")
    if kind is not None and config.deterministic:
        raise ConfigError("quantization", f"is {kind}, and batch-invariant arithmetic is not there for codes")
    fp8_kv = config.kv_precision == "fp8"
    for field, wants_fp8 in (("quantization", kind == "fp8"), ("kv_precision", fp8_kv)):
        if wants_fp8 and 0 < capability < _FP8_CAPABILITY:
            detail = f"fp8 (E4M3) needs compute capability {_FP8_CAPABILITY / 10}, the card has {capability / 10}"
            raise ConfigError(field, detail)
    return Precision(kind, stored.grid if kind is not None and stored is not None else None, fp8_kv)


def check_groups(precision: Precision, model: ModelConfig, tp: int, capability: int) -> None:
    """Every rank's inputs are whole groups, and what a card multiplies in fp8 has its sizes. Raises ConfigError."""
    group = precision.grid.group_size if precision.grid is not None else 0
    widths = {"hidden": model.hidden_size}
    widths |= {"attention": model.num_heads * model.head_dim // tp, "feed-forward": model.intermediate_size // tp}
    for what, width in widths.items():
        if group and width % group:
            raise ConfigError("tp", f"{tp} ranks have {width} {what} inputs each, no multiple of groups of {group}")
        if capability and precision.quantization == "fp8" and width % _FP8_SIZE:
            detail = f"fp8 products are of multiples of {_FP8_SIZE}; a rank has {width} {what} inputs"
            raise ConfigError("quantization", detail)
