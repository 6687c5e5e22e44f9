"""`config.json`: both spellings of rotary parameters, families' defaults, and errors that name the field."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace_worker.layers.rotary import Llama3Stretch
from headrace_worker.models.errors import CheckpointError, ModelError, UnsupportedModelError
from headrace_worker.models.hf_config import read_hf_config
from headrace_worker.models.model_config import ModelConfig
from headrace_worker.models.registry import FAMILIES
from tests.unit.worker.models.tiny import TINY

STRETCH = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(tmp_path: Path, family: str = "llama", **changes: Any) -> ModelConfig:
    """Changes of None remove the field."""
    values = {key: value for key, value in {**TINY[family], **changes}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(values))
    return read_hf_config(tmp_path, frozenset(FAMILIES))


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 500000.0, "rope_scaling": STRETCH},
        {"rope_theta": None, "rope_parameters": {**STRETCH, "rope_theta": 500000.0}},
    ],
)
def test_both_spellings_of_rotary_parameters_mean_the_same(tmp_path: Path, fields: dict[str, Any]) -> None:
    config = read(tmp_path, **fields)
    assert config.rope_theta == 500000.0
    assert config.rope_stretch == Llama3Stretch(8.0, 1.0, 4.0, 8192)


def test_absent_fields_take_the_familys_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, num_key_value_heads=None, rope_theta=None, tie_word_embeddings=None, rms_norm_eps=None)
    assert (config.num_kv_heads, config.rope_theta, config.tie_embeddings) == (6, 10000.0, False)
    assert (config.head_dim, config.rms_norm_eps) == (8, 1e-6)


@pytest.mark.parametrize(("given", "expected"), [(8, 8), ("absent", 4096), ("null", None)])
def test_mistral_windows_every_layer_unless_told_null(tmp_path: Path, given: Any, expected: int | None) -> None:
    values = {**TINY["mistral"], "sliding_window": None if given == "null" else given}
    if given == "absent":
        del values["sliding_window"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = read_hf_config(tmp_path, frozenset(FAMILIES))
    assert [config.window(layer) for layer in range(3)] == [expected] * 3


def test_qwen2_windows_the_layers_behind_max_window_layers(tmp_path: Path) -> None:
    assert read(tmp_path, "qwen2").sliding_windows == (None, 8, 8)
    assert read(tmp_path, "qwen2", use_sliding_window=False).sliding_windows == ()
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    assert read(tmp_path, "qwen2", layer_types=kinds).sliding_windows == (8, None, None)


def test_biases_are_where_the_family_has_them(tmp_path: Path) -> None:
    llama, biased, qwen2 = (read(tmp_path, family) for family in ("llama", "llama-biased", "qwen2"))
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (False, False, False)
    assert (biased.qkv_bias, biased.output_bias, biased.mlp_bias) == (True, True, True)
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.mlp_bias) == (True, False, False)


@pytest.mark.parametrize(
    ("changes", "error", "detail"),
    [
        ({"model_type": None}, CheckpointError, "model_type is missing"),
        ({"model_type": "gpt_neox"}, UnsupportedModelError, "model_type gpt_neox is not one of llama, mistral"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act gelu"),
        ({"vocab_size": None}, CheckpointError, "vocab_size is missing"),
        ({"vocab_size": "64"}, CheckpointError, "vocab_size must be int, is '64'"),
        ({"num_hidden_layers": 0}, CheckpointError, "num_hidden_layers must be positive, is 0"),
        ({"num_hidden_layers": True}, CheckpointError, "num_hidden_layers must be int, is True"),
        ({"num_key_value_heads": 4}, CheckpointError, "num_attention_heads 6 is no multiple of 4"),
        ({"head_dim": 7}, CheckpointError, "head_dim must be even, is 7"),
        ({"rope_theta": -1}, CheckpointError, "rope_theta must be a positive number, is -1"),
        ({"rope_scaling": "llama3"}, CheckpointError, "rope_scaling must be an object"),
        ({"partial_rotary_factor": 0.5}, UnsupportedModelError, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "yarn"}}, UnsupportedModelError, "rope_type 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, CheckpointError, "factor must be a positive number, is None"),
        ({"tie_word_embeddings": "yes"}, CheckpointError, "tie_word_embeddings must be bool"),
    ],
)
def test_what_cannot_be_served_is_named(
    tmp_path: Path, changes: dict[str, Any], error: type[ModelError], detail: str
) -> None:
    with pytest.raises(error, match=rf"^config\.json: {detail}"):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"sliding_window": 0}, "sliding_window must be a positive"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_bad_windows_are_named(tmp_path: Path, changes: dict[str, Any], detail: str) -> None:
    with pytest.raises(CheckpointError, match=rf"^config\.json: {detail}"):
        read(tmp_path, "qwen2", **changes)


@pytest.mark.parametrize(("content", "detail"), [("{", "is not JSON"), ("[]", "is not an object")])
def test_a_damaged_file_is_named(tmp_path: Path, content: str, detail: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=rf"^config\.json: {detail}"):
        read_hf_config(tmp_path, frozenset(FAMILIES))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^config\.json: is missing"):
        read_hf_config(tmp_path, frozenset(FAMILIES))
