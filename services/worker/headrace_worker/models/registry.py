"""Which class serves which family, and how a model is built, empty, from its configuration."""

from dataclasses import dataclass, field

import torch

from headrace_worker.kernels.gemm import select_gemm
from headrace_worker.kernels.quantized_gemm import select_quantized
from headrace_worker.kernels.row_ops import RowOps, TorchRows
from headrace_worker.layers.setting import LayerSetting, Shard, StoredGrid
from headrace_worker.layers.stage import Stage
from headrace_worker.models.llama import LlamaForCausalLM
from headrace_worker.models.model_config import ModelConfig
from headrace_worker.models.qwen2 import Qwen2ForCausalLM
from headrace_worker.models.qwen3 import Qwen3ForCausalLM

FAMILIES: dict[str, type[LlamaForCausalLM]] = {
    "llama": LlamaForCausalLM,
    "mistral": LlamaForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
}


@dataclass(frozen=True)
class BuildOptions:
    """How a model is to run: the same weights may be built in several ways."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    deterministic: bool = False
    """Batch-invariant products: logits are the same bits alone, batched, chunked and on a prefix hit."""
    row_kernels: bool = False
    """Norms, activations and rotations by our kernels instead of torch."""
    quantization: str | None = None
    """fp8 or int4: what linear weights are kept as."""
    grid: StoredGrid | None = None
    """Of a checkpoint whose codes are kept; None: the codes are our own."""
    shard: Shard = field(default_factory=Shard)
    stage: Stage = field(default_factory=Stage)


def build_model(config: ModelConfig, options: BuildOptions) -> LlamaForCausalLM:
    """A model with storage for its weights, not yet filled; `loader` fills and packs it."""
    device = torch.device(options.device)
    gemm = select_gemm(device, options.deterministic)
    setting = LayerSetting(
        gemm=gemm,
        rows=_rows(options),
        quantized=None
        if options.quantization is None
        else select_quantized(options.quantization, device, options.dtype),
        grid=options.grid,
        dtype=options.dtype,
        device=device,
        shard=options.shard,
        stage=options.stage,
    )
    return FAMILIES[config.family](config, setting)


def _rows(options: BuildOptions) -> RowOps:
    if not options.row_kernels:
        return TorchRows(options.deterministic)
    from headrace_worker.kernels.fused_rows import TritonRows

    return TritonRows()
