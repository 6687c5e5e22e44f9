"""Tiny checkpoints of every family, the same bytes on every machine: values come from a hash, not a generator."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
from safetensors.numpy import save_file

VOCAB_SIZE = 64
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 10000.0,
}
_STRETCH = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
TINY: Mapping[str, dict[str, Any]] = {
    "llama": {**_BASE, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "llama-biased": {
        **_BASE,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": True,
        "mlp_bias": True,
    },
    "llama3": {
        **_BASE,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "rope_scaling": _STRETCH,
        "tie_word_embeddings": True,
    },
    "mistral": {**_BASE, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 8},
    "qwen2": {
        **_BASE,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
    },
    "qwen3": {**_BASE, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
}
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {f"t{number}": number for number in range(VOCAB_SIZE)}, "unk_token": "t0"},
}


def tensor_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as Hugging Face writes them, worked out from the architecture's definition alone."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    query, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    bias = config.get("attention_bias", False)
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for name, shape in {"q_proj": (query, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}.items():
            yield f"{at}.self_attn.{name}.weight", shape
            if bias or config["model_type"] == "qwen2":
                yield f"{at}.self_attn.{name}.bias", shape[:1]
        yield f"{at}.self_attn.o_proj.weight", (hidden, query)
        if bias:
            yield f"{at}.self_attn.o_proj.bias", (hidden,)
        if config["model_type"] == "qwen3":
            yield f"{at}.self_attn.q_norm.weight", (head_dim,)
            yield f"{at}.self_attn.k_norm.weight", (head_dim,)
        for name, shape in {
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }.items():
            yield f"{at}.mlp.{name}.weight", shape
            if config.get("mlp_bias", False):
                yield f"{at}.mlp.{name}.bias", shape[:1]
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden)


def hashed_values(name: str, shape: tuple[int, ...]) -> numpy.ndarray[Any, numpy.dtype[numpy.float32]]:
    """Norm weights around 1, all others uniform and scaled so that activations keep their size."""
    seed = sum((place + 1) * ord(letter) for place, letter in enumerate(name))
    numbers = numpy.arange(int(numpy.prod(shape)), dtype=numpy.uint64) + numpy.uint64(seed * 1_000_003)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64's finalizer
        numbers = (numbers ^ (numbers >> numpy.uint64(shift))) * numpy.uint64(factor)
    numbers ^= numbers >> numpy.uint64(31)
    centred = (numbers >> numpy.uint64(40)).astype(numpy.float64) / 2**24 - 0.5
    is_norm = "norm" in name
    scale = 0.2 if is_norm or len(shape) == 1 else 4 / numpy.sqrt(shape[1])
    return (centred * scale + is_norm).astype(numpy.float32).reshape(shape)


def tiny_tensors(config: Mapping[str, Any]) -> dict[str, numpy.ndarray[Any, numpy.dtype[numpy.float32]]]:
    return {name: hashed_values(name, shape) for name, shape in tensor_shapes(config)}


def write_tiny(directory: Path, family: str) -> Path:
    """A complete checkpoint directory."""
    directory.mkdir(parents=True, exist_ok=True)
    config = TINY[family]
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    save_file(tiny_tensors(config), directory / "model.safetensors")
    return directory
