"""Llama 2 and 3.x, SmolLM2 and Mistral: the family whose members differ only by configuration."""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from headrace_worker.attention.base import AttentionStep, HeadRows
from headrace_worker.kernels.rotation import Rotation
from headrace_worker.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from headrace_worker.layers.linear import ColumnParallelLinear, RowParallelLinear, qkv_parts
from headrace_worker.layers.mlp import GatedMLP
from headrace_worker.layers.norm import RMSNorm
from headrace_worker.layers.rotary import RotaryTable, inverse_frequencies
from headrace_worker.layers.setting import LayerSetting
from headrace_worker.models.base import CausalLM
from headrace_worker.models.model_config import ModelConfig


class LlamaAttention(nn.Module):
    """Rotary grouped-query attention."""

    def __init__(self, config: ModelConfig, layer: int, setting: LayerSetting) -> None:
        super().__init__()
        self.place = setting.stage.place_of(layer)
        self.window = config.window(layer)
        self.head_dim = config.head_dim
        parts = qkv_parts(config.num_heads, config.num_kv_heads, config.head_dim, setting)
        self.num_heads = parts["q_proj"].local_rows() // config.head_dim
        self.num_kv_heads = parts["k_proj"].local_rows() // config.head_dim
        self.qkv_proj = ColumnParallelLinear(config.hidden_size, parts, config.qkv_bias, setting)
        width = config.num_heads * config.head_dim
        self.o_proj = RowParallelLinear(width, config.hidden_size, config.output_bias, setting)

    def forward(self, x_TE: Tensor, rotation: Rotation, attention: AttentionStep, rows_R: Tensor | None) -> Tensor:
        qkv_THD = self.qkv_proj(x_TE).view(x_TE.shape[0], -1, self.head_dim)
        heads = self.heads(qkv_THD)
        out_TND = attention.rotate_and_attend(self.place, heads, rotation, self.window)
        if rows_R is not None and not len(rows_R):
            return x_TE[:0]
        out_RND = out_TND if rows_R is None else out_TND[rows_R]
        out: Tensor = self.o_proj(out_RND.flatten(1))
        return out

    def heads(self, qkv_THD: Tensor) -> HeadRows:
        """Queries, keys and values as attention wants them, not rotated yet."""
        num_rotated = self.num_heads + self.num_kv_heads
        return HeadRows(qkv_THD[:, :num_rotated], qkv_THD[:, num_rotated:])


class Stream(NamedTuple):
    """The residual stream before the last block's output is added: the norm that follows adds it on its way."""

    x_TE: Tensor
    delta_TE: Tensor | None = None


class LlamaLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the stream."""

    attention_class: type[LlamaAttention] = LlamaAttention

    def __init__(self, config: ModelConfig, layer: int, setting: LayerSetting) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, setting)
        self.self_attn = self.attention_class(config, layer, setting)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, setting)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.mlp_bias, setting)

    def forward(
        self, stream: Stream, rotation: Rotation, attention: AttentionStep, rows_R: Tensor | None = None
    ) -> Stream:
        """What follows attention is computed for `rows_R` only, if given: nobody reads the others."""
        normed_TE, x_TE = self.input_layernorm.add(*stream)
        delta_RE = self.self_attn(normed_TE, rotation, attention, rows_R)
        if not len(delta_RE):  # the middle of a prompt: its keys and values are written, and that was all
            return Stream(delta_RE, delta_RE)
        normed_RE, x_RE = self.post_attention_layernorm.add(x_TE if rows_R is None else x_TE[rows_R], delta_RE)
        return Stream(x_RE, self.mlp(normed_RE))


class LlamaBody(nn.Module):
    """Embedding, layers and final norm: what checkpoints call `model`."""

    def __init__(self, config: ModelConfig, layer_class: type[LlamaLayer], setting: LayerSetting) -> None:
        super().__init__()
        stage, width = setting.stage, config.hidden_size
        self.is_last = stage.is_last
        self.embed_tokens = stage.at_start(lambda: VocabParallelEmbedding(config.vocab_size, width, setting))
        self.layers = stage.layers(config.num_layers, lambda layer: layer_class(config, layer, setting))
        self.norm = stage.at_end(lambda: RMSNorm(width, config.rms_norm_eps, setting))
        inv_freq = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_stretch)
        if config.rope_divisors:
            inv_freq = inv_freq / torch.tensor(config.rope_divisors)
        self.rotary = RotaryTable(inv_freq, config.max_position, setting.rotary_dtype, setting.device)

    def forward(
        self, ids_T: Tensor, positions_T: Tensor, attention: AttentionStep, rows_R: Tensor | None = None
    ) -> Tensor:
        rotation = self.rotary.at(positions_T)
        stream = Stream(self.embed_tokens(ids_T))
        *layers, last = self.layers.values()
        for layer in layers:
            stream = layer(stream, rotation, attention)
        stream = last(stream, rotation, attention, rows_R if self.is_last else None)
        x_TE, delta_TE = stream
        assert delta_TE is not None, "every stage has layers"
        return self.norm.add(x_TE, delta_TE)[0] if self.is_last else x_TE + delta_TE


class LlamaForCausalLM(CausalLM):
    """The body and its output head."""

    layer_class: type[LlamaLayer] = LlamaLayer

    def __init__(self, config: ModelConfig, setting: LayerSetting) -> None:
        super().__init__()
        self.config = config
        self.model = LlamaBody(config, self.layer_class, setting)
        tied = config.tie_embeddings and setting.stage.is_first
        size = config.vocab_size, config.hidden_size
        self.lm_head = setting.stage.at_end(lambda: VocabParallelHead(*size, setting, tied))
        if tied and setting.stage.is_last:
            self.lm_head.tie(self.model.embed_tokens)

    @property
    def kv_heads_per_layer(self) -> list[int]:
        """KV heads of each layer here, by the layer's place: those of this rank alone."""
        return [cast(LlamaLayer, layer).self_attn.num_kv_heads for layer in self.model.layers.values()]

    def forward(
        self, ids_T: Tensor, positions_T: Tensor, attention: AttentionStep, rows_R: Tensor | None = None
    ) -> Tensor:
        out: Tensor = self.model(ids_T, positions_T, attention, rows_R)
        return out

    def compute_logits(self, hidden_RE: Tensor) -> Tensor:
        out: Tensor = self.lm_head(hidden_RE)
        return out
