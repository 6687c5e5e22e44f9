"""A model with its weights in memory and its way to attend: what one rank computes with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_worker.attention.base import AttentionBackend
from headrace_worker.kernels.int4_weight import Int4Weight
from headrace_worker.kernels.quantized_gemm import Fp8Weight
from headrace_worker.models.llama import LlamaForCausalLM


@dataclass(frozen=True)
class Loaded:
    """`model` may be a shard and a stage of the whole."""

    model: LlamaForCausalLM
    attention: AttentionBackend
    dtype: torch.dtype
    kv_dtype: torch.dtype
    device: torch.device
    end_token_ids: frozenset[int]
    quantization: str = "none"
    """Of weights and KV, by name."""

    @property
    def weight_bytes(self) -> int:
        """Distinct tensors only: a tied head is counted once."""
        tensors = [*self.model.parameters(), *self.model.buffers(), *_weights(self.model)]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def _weights(model: torch.nn.Module) -> Iterable[Tensor]:
    """Weights are plain tensors of their layers, not parameters: nothing here is trained."""
    for module in model.modules():
        for value in vars(module).values():
            parts = vars(value).values() if isinstance(value, Fp8Weight | Int4Weight) else (value,)
            yield from (part for part in parts if isinstance(part, Tensor))
