"""Hugging Face `config.json` -> ModelConfig. Fields and defaults are those of transformers' configuration classes."""

from pathlib import Path
from typing import Any

from headrace_worker.layers.rotary import Llama3Stretch
from headrace_worker.models.errors import CheckpointError, UnsupportedModelError
from headrace_worker.models.json_file import JsonFile
from headrace_worker.models.model_config import ModelConfig

CONFIG_NAME = "config.json"
_DEFAULT_THETA = 10_000.0
_MISTRAL_DEFAULT_WINDOW = 4096


def read_hf_config(directory: Path, families: frozenset[str]) -> ModelConfig:
    """Raises CheckpointError naming the field, or UnsupportedModelError for a family or feature we do not have."""
    file = JsonFile(directory / CONFIG_NAME)
    family = file.get("model_type", str)
    if family not in families:
        raise UnsupportedModelError(f"{file.name}: model_type {family} is not one of {', '.join(sorted(families))}")
    if (activation := file.get("hidden_act", str, "silu")) != "silu":
        raise UnsupportedModelError(f"{file.name}: hidden_act {activation}; only silu is known")
    num_heads = file.positive("num_attention_heads")
    num_kv_heads = file.positive("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(file.name, f"num_attention_heads {num_heads} is no multiple of {num_kv_heads} KV heads")
    hidden_size = file.positive("hidden_size")
    rope = _rope_values(file)
    bias = file.get("attention_bias", bool, False)
    num_layers = file.positive("num_hidden_layers")
    return ModelConfig(
        family=family,
        vocab_size=file.positive("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=file.positive("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(file, hidden_size, num_heads),
        max_position=file.positive("max_position_embeddings"),
        rms_norm_eps=file.get("rms_norm_eps", float, 1e-6),
        rope_theta=_number(file, rope, "rope_theta", _DEFAULT_THETA),
        tie_embeddings=file.get("tie_word_embeddings", bool, False),
        rope_stretch=_stretch(file, rope),
        sliding_windows=_windows(file, family, num_layers),
        qkv_bias=bias or family == "qwen2",
        output_bias=bias and family != "qwen2",
        mlp_bias=file.get("mlp_bias", bool, False),
    )


def _head_dim(file: JsonFile, hidden_size: int, num_heads: int) -> int:
    head_dim = file.positive("head_dim", 128 if file.values["model_type"] == "qwen3" else hidden_size // num_heads)
    if head_dim % 2:
        raise CheckpointError(file.name, f"head_dim must be even, is {head_dim}")
    return head_dim


def _rope_values(file: JsonFile) -> dict[str, Any]:
    """`rope_parameters` (transformers 5) or `rope_theta` beside `rope_scaling` (before), as one mapping."""
    values: dict[str, Any] = {}
    if (theta := file.values.get("rope_theta")) is not None:
        values["rope_theta"] = theta
    for field in ("rope_scaling", "rope_parameters"):
        part = file.values.get(field)
        if part is not None and not isinstance(part, dict):
            raise CheckpointError(file.name, f"{field} must be an object, is {part!r}")
        values.update(part or {})
    return values


def _number(file: JsonFile, values: dict[str, Any], field: str, default: float | None = None) -> float:
    value = values.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise CheckpointError(file.name, f"{field} must be a positive number, is {value!r}")
    return float(value)


def _stretch(file: JsonFile, rope: dict[str, Any]) -> Llama3Stretch | None:
    if rope.get("partial_rotary_factor", file.values.get("partial_rotary_factor")) not in (None, 1):
        raise UnsupportedModelError(f"{file.name}: partial_rotary_factor; the whole head is rotated here")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedModelError(f"{file.name}: rope_type {kind!r}; default and llama3 are known")
    return Llama3Stretch(
        factor=_number(file, rope, "factor"),
        low_freq_factor=_number(file, rope, "low_freq_factor"),
        high_freq_factor=_number(file, rope, "high_freq_factor"),
        original_max_position=int(_number(file, rope, "original_max_position_embeddings")),
    )


def _windows(file: JsonFile, family: str, num_layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer, from whichever of the three ways the family says it."""
    if family == "llama":
        return ()
    if family == "mistral":
        absent = "sliding_window" not in file.values
        window = _MISTRAL_DEFAULT_WINDOW if absent else file.values["sliding_window"]
        return () if window is None else (_window(file, window),) * num_layers
    if not file.get("use_sliding_window", bool, False):
        return ()
    window = _window(file, file.values.get("sliding_window", _MISTRAL_DEFAULT_WINDOW))
    kinds = file.values.get("layer_types")
    if kinds is None:
        first = file.get("max_window_layers", int, 28)
        kinds = ["full_attention" if layer < first else "sliding_attention" for layer in range(num_layers)]
    known = {"full_attention", "sliding_attention"}
    if not isinstance(kinds, list) or len(kinds) != num_layers or not known.issuperset(kinds):
        raise CheckpointError(file.name, f"layer_types must name {sorted(known)} for each of {num_layers} layers")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _window(file: JsonFile, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise CheckpointError(file.name, f"sliding_window must be a positive integer, is {value!r}")
    return value
