"""Tiny quantized checkpoints, packed here by the formats' definitions and not by the code that reads them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.unit.worker.models.tiny import TINY, TOKENIZER, tiny_tensors

GROUP = 16
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output that lies in place 0, 1, ... of a word (AutoAWQ's `pack`)."""
_CONFIGS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False},
    "gptq_v2": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": "gptq_v2"},
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"},
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
    },
}


def pack(codes: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """[..., 8 N] -> int32 [..., N]."""
    grouped = codes.to(torch.int64).reshape(*codes.shape[:-1], -1, 8)
    words = sum(grouped[..., output] << (4 * place) for place, output in enumerate(order))
    assert isinstance(words, Tensor)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def quantized(name: str, weight_OI: Tensor, method: str) -> tuple[dict[str, Tensor], Tensor]:
    """What a file has instead of a weight, and the weight that this stands for."""
    base = name.removesuffix(".weight")
    out_size, in_size = weight_OI.shape
    if method in ("fp8", "compressed"):
        top = weight_OI.abs().amax(1, keepdim=True) if method == "compressed" else weight_OI.abs().max().reshape(1)
        scale = top / 448
        codes = (weight_OI / scale).to(torch.float8_e4m3fn)
        return {name: codes, f"{base}.weight_scale": scale}, codes.float() * scale
    generator = torch.Generator().manual_seed(out_size)
    groups = weight_OI.view(out_size, -1, GROUP)
    zeros = torch.randint(1, 16, groups.shape[:2], generator=generator)
    scales = (groups.abs().amax(-1) / 7).to(torch.float16)
    codes = ((groups / scales.float()[..., None]).round() + zeros[..., None]).clamp(0, 15).to(torch.int64)
    meant = ((codes - zeros[..., None]) * scales.float()[..., None]).flatten(1)
    flat = codes.flatten(1)
    if method == "awq":
        words, packed_zeros = pack(flat.t(), _AWQ_ORDER), pack(zeros.t(), _AWQ_ORDER)
    else:
        words = pack(flat).t()
        packed_zeros = pack(zeros.t() - int(method == "gptq"))
    parts = {"qweight": words, "qzeros": packed_zeros, "scales": scales.t()}
    if method != "awq":
        parts["g_idx"] = torch.arange(in_size, dtype=torch.int32) // GROUP
    return {f"{base}.{end}": part.contiguous() for end, part in parts.items()}, meant


def write_quantized(directory: Path, method: str) -> dict[str, Tensor]:
    """A tiny llama whose projections are quantized; returns the weights that it stands for."""
    directory.mkdir(parents=True)
    config = {**TINY["llama"], "quantization_config": _CONFIGS[method]}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    tensors: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    for name, values in tiny_tensors(TINY["llama"]).items():
        weight = torch.from_numpy(values)
        if "_proj" in name:
            parts, meant[name] = quantized(name, weight, method)
            tensors |= parts
        else:
            tensors[name] = meant[name] = weight
    save_file(tensors, directory / "model.safetensors")
    return meant
