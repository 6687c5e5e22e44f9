"""GGUF -> the names, layouts and configuration that our models know. Each quirk of the format has its place here."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from headrace_worker.layers.weight_slot import Region
from headrace_worker.models.errors import CheckpointError, UnsupportedModelError
from headrace_worker.models.file_digest import sha256_of_file
from headrace_worker.models.gguf_file import GgufFile
from headrace_worker.models.model_config import ModelConfig
from headrace_worker.models.weight_source import TensorInfo, WeightSource
from headrace_worker.quant.gguf_blocks import BlockTypeError, GgufTensor

_FAMILIES = frozenset({"llama", "qwen2", "qwen3"})
_PERMUTED_FAMILIES = frozenset({"llama"})
"""Their converter stores query and key rows in the order of interleaved rotary pairs."""
_ROPE_FREQS = "rope_freqs.weight"
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>\w+)\.(?P<kind>weight|bias)")


def our_name(gguf_name: str) -> str:
    """The Hugging Face name of a GGUF tensor; one without a counterpart keeps its name and is refused later."""
    if gguf_name in _TOP_NAMES:
        return _TOP_NAMES[gguf_name]
    match = _LAYER_TENSOR.fullmatch(gguf_name)
    if match is None or match["part"] not in _LAYER_NAMES:
        return gguf_name
    return f"model.layers.{int(match['layer'])}.{_LAYER_NAMES[match['part']]}.{match['kind']}"


def unpermute(rows: Tensor, num_heads: int) -> Tensor:
    """Undo the converter's reordering of a query or key projection: pairs (2i, 2i+1) back to halves (i, i + D/2)."""
    head_dim = rows.shape[0] // num_heads
    paired = rows.reshape(num_heads, head_dim // 2, 2, *rows.shape[1:])
    return paired.swapaxes(1, 2).reshape(rows.shape)


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """Raises CheckpointError naming the key, or UnsupportedModelError."""
    family = file.get("general.architecture", str)
    name = file.path.name
    if family not in _FAMILIES:
        raise UnsupportedModelError(f"{name}: architecture {family} is not one of {', '.join(sorted(_FAMILIES))}")
    scaling = file.get(f"{family}.rope.scaling.type", str, "none")
    if scaling != "none":
        raise UnsupportedModelError(f"{name}: rope scaling {scaling}; only frequency factors (llama3) are known")
    num_heads = file.positive(f"{family}.attention.head_count")
    num_kv_heads = file.positive(f"{family}.attention.head_count_kv", num_heads)
    hidden_size = file.positive(f"{family}.embedding_length")
    head_dim = file.positive(f"{family}.attention.key_length", hidden_size // num_heads)
    num_layers = file.positive(f"{family}.block_count")
    if num_heads % num_kv_heads or head_dim % 2:
        raise CheckpointError(name, f"{num_heads} heads, {num_kv_heads} KV heads, width {head_dim} do not fit together")
    if file.get(f"{family}.rope.dimension_count", int, head_dim) != head_dim:
        raise UnsupportedModelError(f"{name}: rotary embedding of a part of the head is not known")
    window = file.get(f"{family}.attention.sliding_window", int, 0)
    return ModelConfig(
        family=family,
        vocab_size=_vocab_size(file),
        hidden_size=hidden_size,
        intermediate_size=file.positive(f"{family}.feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=file.positive(f"{family}.context_length"),
        rms_norm_eps=file.get(f"{family}.attention.layer_norm_rms_epsilon", float),
        rope_theta=file.get(f"{family}.rope.freq_base", float, 10_000.0),
        tie_embeddings="output.weight" not in file.tensors,
        rope_divisors=_rope_divisors(file, head_dim),
        sliding_windows=(window,) * num_layers if window > 0 else (),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
    )


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(file.path.name, "token_embd.weight is missing")
    return embedding.shape[0]


def _rope_divisors(file: GgufFile, head_dim: int) -> tuple[float, ...]:
    """`rope_freqs.weight` as what it means: divisors of the rotary frequencies, from 1 upwards.

    Very old files hold the frequencies themselves under this name; those are recomputed from the base, not read.
    """
    tensor = file.tensors.get(_ROPE_FREQS)
    if tensor is None:
        return ()
    divisors = tensor.dequantize().flatten()
    if divisors.shape[0] != head_dim // 2 or not bool(torch.isfinite(divisors).all()):
        raise CheckpointError(file.path.name, f"{_ROPE_FREQS} must hold {head_dim // 2} finite numbers")
    if bool((divisors < 1).any()) or bool((divisors == 1).all()):
        return ()
    return tuple(divisors.tolist())


def _read_region(stored: GgufTensor, region: Region | None) -> Tensor:
    """Only the rows wanted are dequantized; columns are cut from whole rows, whose blocks they may divide."""
    if region is not None and region.dim == 0 and len(stored.shape) > 1:
        return stored.dequantize(region.start, region.size)
    whole = stored.dequantize()
    return whole if region is None else region.of(whole)


class GgufWeights(WeightSource):
    """The tensors of a GGUF file under Hugging Face names, dequantized to float32 as they are read."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config
        self._tensors = {our_name(name): tensor for name, tensor in file.tensors.items() if name != _ROPE_FREQS}

    def tensors(self) -> Mapping[str, TensorInfo]:
        file = self._file.path.name
        return {name: TensorInfo(tensor.shape, file, tensor.num_bytes) for name, tensor in self._tensors.items()}

    def read(self, name: str, region: Region | None = None) -> Tensor:
        stored = self._tensors[name]
        try:
            tensor = _read_region(stored, region)
        except BlockTypeError as error:
            raise UnsupportedModelError(f"{self._file.path.name}: {name}: {error}") from None
        if self._config.family in _PERMUTED_FAMILIES and (".q_proj." in name or ".k_proj." in name):
            head_dim = self._config.head_dim
            assert region is None or not region.start % head_dim, f"{name}: {region} cuts a head"
            return unpermute(tensor, tensor.shape[0] // head_dim)
        return tensor

    def identity(self) -> Mapping[str, str]:
        return {self._file.path.name: sha256_of_file(self._file.path)}
