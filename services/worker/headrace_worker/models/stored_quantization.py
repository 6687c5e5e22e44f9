"""`quantization_config` of a checkpoint: what linear weights are stored as; what we do not read is refused by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace_worker.layers.setting import StoredGrid
from headrace_worker.models.errors import UnsupportedModelError
from headrace_worker.models.json_file import JsonFile

_CONFIG_NAME = "config.json"


@dataclass(frozen=True)
class StoredQuantization:
    """`zero_offset` is added to what a GPTQ file stores as zeros."""

    kind: Literal["fp8", "int4"]
    method: Literal["awq", "gptq", "fp8"]
    group_size: int = 0
    zero_offset: int = 0

    @property
    def grid(self) -> StoredGrid:
        return StoredGrid(self.group_size, has_zeros=self.kind == "int4")


def read_stored_quantization(directory: Path) -> StoredQuantization | None:
    """None where nothing is quantized. Raises UnsupportedModelError."""
    values = JsonFile(directory / _CONFIG_NAME).values.get("quantization_config")
    if not values:
        return None
    method = values.get("quant_method") if isinstance(values, dict) else None
    readers = {"awq": _awq, "gptq": _gptq, "fp8": _fp8, "compressed-tensors": _compressed}
    if method not in readers:
        raise _unsupported(f"quant_method {method!r}; {', '.join(readers)} are known")
    return readers[method](values)


def _unsupported(detail: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{_CONFIG_NAME}: quantization_config: {detail}")


def _group_size(values: dict[str, Any]) -> int:
    size = values.get("group_size", values.get("q_group_size"))
    if not isinstance(size, int) or size < 16 or size % 16:
        raise _unsupported(f"group_size {size!r}; multiples of 16 are known")
    return size


def _four_bits(values: dict[str, Any]) -> None:
    bits = values.get("bits", values.get("w_bit"))
    if bits != 4:
        raise _unsupported(f"bits {bits!r}; 4 is known")


def _awq(values: dict[str, Any]) -> StoredQuantization:
    _four_bits(values)
    if (version := str(values.get("version", "gemm")).lower()) != "gemm":
        raise _unsupported(f"version {version!r} of awq; gemm is known")
    return StoredQuantization("int4", "awq", _group_size(values))


def _gptq(values: dict[str, Any]) -> StoredQuantization:
    """Groups in the order of activations are refused when the file's own index says so, not here."""
    _four_bits(values)
    first_version = values.get("checkpoint_format", "gptq") != "gptq_v2"
    return StoredQuantization("int4", "gptq", _group_size(values), zero_offset=int(first_version))


def _fp8(values: dict[str, Any]) -> StoredQuantization:
    if values.get("weight_block_size"):
        raise _unsupported(f"weight_block_size {values['weight_block_size']}; a scale per channel or tensor is known")
    if (kind := values.get("fmt", "e4m3")) not in ("e4m3", "float8_e4m3fn"):
        raise _unsupported(f"fmt {kind!r}; e4m3 is known")
    return StoredQuantization("fp8", "fp8")


def _compressed(values: dict[str, Any]) -> StoredQuantization:
    groups = list((values.get("config_groups") or {}).values())
    if values.get("format") != "float-quantized" or len(groups) != 1:
        raise _unsupported(f"format {values.get('format')!r} in {len(groups)} groups; float-quantized in one is known")
    weights = groups[0].get("weights") or {}
    if weights.get("num_bits") != 8 or weights.get("strategy") not in ("channel", "tensor"):
        detail = f"weights of {weights.get('num_bits')} bits per {weights.get('strategy')}"
        raise _unsupported(f"{detail}; 8 bits per channel or tensor are known")
    return StoredQuantization("fp8", "fp8")
