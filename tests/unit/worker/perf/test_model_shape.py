"""Parameter counts against the published ones, and how a config.json is read or refused."""

from typing import Any

import pytest

from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.model_shape import BUILT_IN_MODELS, from_config

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("model", "num_params"),
    [
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-8b", 8_030_261_248),
        ("qwen3-0.6b", 596_049_920),
        ("smollm2-135m-instruct", 134_515_008),
    ],
)
def test_dimensions_imply_the_published_parameter_count(model: str, num_params: int) -> None:
    assert BUILT_IN_MODELS[model].num_params == num_params


def test_a_config_file_equals_the_built_in_model() -> None:
    assert from_config(LLAMA_8B, name="llama-3.1-8b") == BUILT_IN_MODELS["llama-3.1-8b"]


def test_text_part_of_a_multimodal_config_is_read() -> None:
    assert from_config({"model_type": "gemma3", "text_config": LLAMA_8B}).num_layers == 32


def test_opt_has_two_mlp_matrices_and_all_heads_as_kv_heads() -> None:
    shape = from_config(
        {"model_type": "opt", "hidden_size": 5120, "ffn_dim": 20480, "num_attention_heads": 40,
         "num_hidden_layers": 40, "vocab_size": 50272, "max_position_embeddings": 2048}
    )  # fmt: skip
    assert not shape.gated_mlp
    assert shape.num_kv_heads == 40
    assert shape.num_params == pytest.approx(13e9, rel=0.02)


@pytest.mark.parametrize(
    ("config", "num_kv_heads", "billions"),
    [
        ({"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32,
          "vocab_size": 65024, "multi_query": True, "new_decoder_architecture": False}, 1, 6.92),
        ({"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60,
          "vocab_size": 65024, "num_kv_heads": 8, "new_decoder_architecture": True}, 8, 41.3),
        ({"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 40,
          "n_positions": 8192, "vocab_size": 49152, "multi_query": True}, 1, 15.5),
        ({"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16,
          "num_key_value_heads": 8, "num_hidden_layers": 42, "head_dim": 256, "vocab_size": 256000,
          "max_position_embeddings": 8192}, 8, 9.24),
        ({"model_type": "cohere", "hidden_size": 8192, "intermediate_size": 22528, "num_attention_heads": 64,
          "num_key_value_heads": 64, "num_hidden_layers": 40, "vocab_size": 256000}, 64, 35.0),
        ({"model_type": "nemotron", "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 48,
          "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 256000,
          "tie_word_embeddings": False}, 8, 15.6),
    ],
)  # fmt: skip
def test_families_that_leave_much_unsaid(config: dict[str, Any], num_kv_heads: int, billions: float) -> None:
    """Published: Falcon 7B and 40B, StarCoder, Gemma 2 9B, Command R, Nemotron-4 15B."""
    shape = from_config(config)
    assert shape.num_kv_heads == num_kv_heads
    assert shape.num_params == pytest.approx(billions * 1e9, rel=0.02)


def test_layers_without_attention_are_refused() -> None:
    kinds = ["linear_attention"] * 24 + ["full_attention"] * 8
    with pytest.raises(PerfError, match="'linear_attention' are not modelled") as caught:
        from_config(LLAMA_8B | {"layer_types": kinds})
    assert caught.value.field == "layer_types"


def test_layer_types_say_which_layers_are_windowed() -> None:
    kinds = ["sliding_attention", "full_attention"] * 16
    shape = from_config(LLAMA_8B | {"sliding_window": 4096, "layer_types": kinds})
    assert (shape.sliding_window, shape.num_window_layers) == (4096, 16)


def test_a_window_without_layer_types_is_on_every_layer_unless_switched_off() -> None:
    assert from_config(LLAMA_8B | {"sliding_window": 4096}).num_window_layers == 32
    assert from_config(LLAMA_8B | {"sliding_window": 4096, "use_sliding_window": False}).num_window_layers == 0


@pytest.mark.parametrize(
    ("config", "num_layers"),
    [
        ({"model_type": "mistral"}, 32),
        ({"model_type": "gemma2"}, 16),
        ({"model_type": "gemma3_text"}, 27),
        ({"model_type": "qwen2"}, 0),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 28}, 4),
    ],
)
def test_each_family_has_its_rule_for_windows(config: dict[str, Any], num_layers: int) -> None:
    assert from_config(LLAMA_8B | {"sliding_window": 4096} | config).num_window_layers == num_layers


@pytest.mark.parametrize("value", [None, "32", 0, -1, True, 2.5])
def test_a_missing_or_mistyped_dimension_is_named(value: object) -> None:
    with pytest.raises(PerfError) as caught:
        from_config(LLAMA_8B | {"num_hidden_layers": value})
    assert caught.value.field == "num_hidden_layers"


@pytest.mark.parametrize("key", ["num_local_experts", "n_routed_experts", "kv_lora_rank"])
def test_what_is_not_modelled_is_refused_by_name(key: str) -> None:
    with pytest.raises(PerfError, match="not modelled") as caught:
        from_config(LLAMA_8B | {key: 8})
    assert caught.value.field == key


def test_kv_heads_must_divide_query_heads() -> None:
    with pytest.raises(PerfError, match="5 KV heads do not divide 32 query heads"):
        from_config(LLAMA_8B | {"num_key_value_heads": 5})
