"""A Llama of random weights, so small that a prompt of some hundred tokens costs a CPU about what its KV costs to move:
with a model that says something, two pages are already worth moving on a CPU, and there is no break-even to measure.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from headrace_worker.transfer.shape import KvShape

VOCAB_SIZE, HIDDEN, INNER, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS = 64, 64, 128, 2, 4, 2
HEAD_DIM = HIDDEN // NUM_HEADS
SHAPE = KvShape(NUM_LAYERS, NUM_KV_HEADS, HEAD_DIM, "float32", 16)
_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write(directory: Path) -> Path:
    """A complete checkpoint directory."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(_CONFIG))
    vocab = {f"t{number}": number for number in range(VOCAB_SIZE)}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"}
    (directory / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    chance = np.random.default_rng(0)
    shapes = {"embed_tokens.weight": (VOCAB_SIZE, HIDDEN), "norm.weight": (HIDDEN,)}
    for layer in range(NUM_LAYERS):
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in _layer().items()}
    weights = {f"model.{name}": (0.1 * chance.standard_normal(shape)).astype("f4") for name, shape in shapes.items()}
    save_file(weights, directory / "model.safetensors")
    return directory


def _layer() -> dict[str, tuple[int, ...]]:
    kv = NUM_KV_HEADS * HEAD_DIM
    return {
        "input_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
