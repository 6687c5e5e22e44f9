"""Writes tiny GGUF files the way llama.cpp's converter does, quirks included."""

from pathlib import Path
from typing import Any

import numpy
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from tests.unit.worker.models.tiny import TINY, tiny_tensors

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
}
BYTES_IN_GPT2_ALPHABET = [chr(number) for number in range(ord("!"), ord("~") + 1)]
Array = numpy.ndarray[Any, Any]


def gguf_name(name: str) -> str:
    for ours, theirs in GGUF_NAMES.items():
        name = name.replace(ours, theirs)
    return name.replace("model.layers.", "blk.")


def permute(rows: Array, num_heads: int) -> Array:
    """The converter's reordering of query and key rows (`LlamaModel.permute`)."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


class GgufFixture:
    """`extra` tensors are added as they are; `fields` add or replace metadata."""

    def __init__(self, family: str = "llama") -> None:
        self.family = family
        self.config = dict(TINY[family])
        self.tensors = tiny_tensors(self.config)
        self.extra: dict[str, Array] = {}
        self.quantized: dict[str, GGMLQuantizationType] = {}
        self.tokens = [*BYTES_IN_GPT2_ALPHABET[:59], "AB", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
        self.merges = ["A B"]
        self.pre = "smollm"
        self.add_bos = False
        self.chat_template: str | None = None
        self.numbers: dict[str, int] = {}

    def write(self, path: Path) -> Path:
        arch = self.config["model_type"]
        writer = GGUFWriter(path, arch)
        writer.add_block_count(self.config["num_hidden_layers"])
        writer.add_context_length(self.config["max_position_embeddings"])
        writer.add_embedding_length(self.config["hidden_size"])
        writer.add_feed_forward_length(self.config["intermediate_size"])
        writer.add_head_count(self.config["num_attention_heads"])
        writer.add_head_count_kv(self.config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(self.config["rms_norm_eps"])
        writer.add_rope_freq_base(self.config["rope_theta"])
        if "head_dim" in self.config:
            writer.add_key_length(self.config["head_dim"])
        for key, number in self.numbers.items():
            writer.add_uint32(key, number)
        self._add_tokenizer(writer)
        self._add_tensors(writer, arch)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add_tokenizer(self, writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types([3 if token.startswith("<") and len(token) > 1 else 1 for token in self.tokens])
        writer.add_token_merges(self.merges)
        writer.add_bos_token_id(self.tokens.index("<s>"))
        writer.add_eos_token_id(self.tokens.index("</s>"))
        writer.add_add_bos_token(self.add_bos)
        if self.chat_template is not None:
            writer.add_chat_template(self.chat_template)

    def _add_tensors(self, writer: GGUFWriter, arch: str) -> None:
        for name, tensor in self.tensors.items():
            stored = self._reordered(name, tensor) if arch == "llama" else tensor
            kind = self.quantized.get(name)
            if kind is None:
                writer.add_tensor(gguf_name(name), numpy.ascontiguousarray(stored))
            else:
                writer.add_tensor(gguf_name(name), quantize(stored, kind), raw_dtype=kind)
        for name, tensor in self.extra.items():
            writer.add_tensor(name, tensor)

    def _reordered(self, name: str, tensor: Array) -> Array:
        for part, heads in ((".q_proj.", "num_attention_heads"), (".k_proj.", "num_key_value_heads")):
            if part in name:
                return permute(tensor, self.config[heads])
        return tensor
