"""Qwen3 dense: Llama whose queries and keys are normed per head before they are rotated."""

import torch
from torch import Tensor

from headrace_worker.attention.base import HeadRows
from headrace_worker.layers.norm import RMSNorm
from headrace_worker.layers.setting import LayerSetting
from headrace_worker.models.llama import LlamaAttention, LlamaForCausalLM, LlamaLayer
from headrace_worker.models.model_config import ModelConfig


class Qwen3Attention(LlamaAttention):
    """One norm weight for all query heads, one for all key heads."""

    def __init__(self, config: ModelConfig, layer: int, setting: LayerSetting) -> None:
        super().__init__(config, layer, setting)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, setting)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, setting)

    def heads(self, qkv_THD: Tensor) -> HeadRows:
        rows = super().heads(qkv_THD)
        q_TND, k_TKD = self.q_norm(rows.qk_THD[:, : self.num_heads]), self.k_norm(rows.qk_THD[:, self.num_heads :])
        return HeadRows(torch.cat((q_TND, k_TKD), dim=1), rows.v_TKD)


class Qwen3Layer(LlamaLayer):
    """A Llama layer with Qwen3 attention."""

    attention_class = Qwen3Attention


class Qwen3ForCausalLM(LlamaForCausalLM):
    """See the module."""

    layer_class = Qwen3Layer
