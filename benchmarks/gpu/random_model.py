"""Models of known shapes with random weights, made on the device: nothing is downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from headrace_worker.attention.needs import AttentionNeeds
from headrace_worker.attention.registry import choose_attention
from headrace_worker.config import WorkerConfig
from headrace_worker.execution.loaded import Loaded
from headrace_worker.execution.rank_steps import RankSteps
from headrace_worker.execution.torch_runner import Served, TorchRunner
from headrace_worker.kernels.capability import capability
from headrace_worker.layers.weight_slot import Region, weight_layers
from headrace_worker.models.checkpoint import Checkpoint
from headrace_worker.models.llama import LlamaForCausalLM
from headrace_worker.models.model_config import ModelConfig
from headrace_worker.models.registry import BuildOptions, build_model
from headrace_worker.models.text_assets import TextAssets
from headrace_worker.models.weight_source import TensorInfo, WeightSource


def shape(
    family: str, sizes: tuple[int, int, int, int, int, int], vocab_size: int, tied: bool, context: int = 16384
) -> ModelConfig:
    """Sizes are hidden, feed-forward, layers, heads, KV heads, head width."""
    hidden, inner, layers, heads, kv_heads, head_dim = sizes
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=context,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        tie_embeddings=tied,
    )


LLAMA_8B = shape("llama", (4096, 14336, 32, 32, 8, 128), 128_256, tied=False)
QWEN3_600M = shape("qwen3", (1024, 3072, 28, 16, 8, 128), 151_936, tied=True)
TINY = shape("qwen3", (64, 96, 2, 4, 2, 16), 96, tied=True, context=256)


class _NoFiles(WeightSource):
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {}

    def read(self, name: str, region: Region | None = None) -> Tensor:
        raise AssertionError("random weights come from no file")

    def identity(self) -> Mapping[str, str]:
        return {}


def random_model(config: ModelConfig, options: BuildOptions) -> LlamaForCausalLM:
    """Norms are ones; other weights keep activations at their size."""
    model = build_model(config, options)
    for name, layer in weight_layers(model):
        weight = layer.weight
        assert isinstance(weight, Tensor), name
        if weight.dim() == 1:
            weight.fill_(1.0)
        elif weight.numel():
            weight.normal_(0.0, weight.shape[1] ** -0.5)
    for _, layer in weight_layers(model):
        layer.pack()
    return model.eval()


def load_random(config: ModelConfig, settings: WorkerConfig, quantization: str | None = None) -> Loaded:
    """As the engine would: attention chosen by the same rule."""
    device = torch.device(settings.device)
    dtype = getattr(torch, settings.precision)
    kv_dtype = torch.float8_e4m3fn if settings.kv_precision == "fp8" else dtype
    needs = AttentionNeeds(
        device=device.type,
        capability=capability(device),
        dtype=settings.precision,
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        page_tokens=settings.page_tokens,
        head_dim=config.head_dim,
    )
    attention = choose_attention(settings.attention, needs).backend
    options = BuildOptions(settings.device, dtype, row_kernels=attention.row_kernels, quantization=quantization)
    with torch.inference_mode():
        model = random_model(config, options)
    return Loaded(model, attention, dtype, kv_dtype, device, frozenset({0}))


def runner_of(config: ModelConfig, settings: WorkerConfig) -> TorchRunner:
    """Warmed up."""
    loaded = load_random(config, settings)
    text = TextAssets("{}", None, (0,))
    checkpoint = Checkpoint(config, text, _NoFiles(), Path("."), "random", "0", "00" * 32)
    runner = TorchRunner(settings, loaded, Served(checkpoint, config.max_position, None), RankSteps(settings, loaded))
    runner.warm_up(lambda phase, share: None)
    return runner


def hash_block(before: bytes, ids: Sequence[int]) -> bytes:
    """Identities of blocks; the contract's own function is not needed here."""
    return hashlib.sha256(before + b"".join(int(each).to_bytes(4, "little") for each in ids)).digest()


def settings_of(device: torch.device, **changes: object) -> WorkerConfig:
    """A configuration without files."""
    precision = "bfloat16" if device.type == "cuda" else "float32"
    values: dict[str, object] = {"device": device.type, "precision": precision, "source": "random", "model": "random"}
    return WorkerConfig(service_token_file=Path("t"), state_dir=Path("."), **(values | changes))  # type: ignore[arg-type]
