"""A quantized checkpoint as plain names: `weight`, dequantized, beside `weight_scale` and `weight_zero` [O, G].

A layer that keeps codes gets back exactly those of the file: they are the weight over its scale, rounded, plus zero.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from headrace_worker.layers.weight_slot import Region
from headrace_worker.models.errors import CheckpointError, UnsupportedModelError
from headrace_worker.models.safetensors_directory import SafetensorsDirectory
from headrace_worker.models.stored_quantization import StoredQuantization
from headrace_worker.models.weight_source import TensorInfo, WeightSource
from headrace_worker.quant.nibbles import awq_codes, gptq_codes, gptq_zeros

_NOT_READ = (".input_scale", ".output_scale", ".k_scale", ".v_scale")
"""Scales of activations and KV that were measured offline: ours are worked out per token."""
_SCALE, _ZERO = ".weight_scale", ".weight_zero"


class QuantizedDirectory(WeightSource):
    """Tensors that are not quantized are read as they are."""

    def __init__(self, directory: SafetensorsDirectory, stored: StoredQuantization, with_grid: bool = True) -> None:
        self._directory, self._stored, self._with_grid = directory, stored, with_grid
        raw = directory.tensors()
        end = ".weight_scale" if stored.kind == "fp8" else ".qweight"
        self._bases = {name.removesuffix(end) for name in raw if name.endswith(end)}
        if not self._bases:
            raise CheckpointError("model.safetensors", f"has no *{end}, which its quantization_config promises")
        self._infos = self._describe(raw)

    def dequantized(self) -> "QuantizedDirectory":
        """The same weights without what tells their codes."""
        return QuantizedDirectory(self._directory, self._stored, with_grid=False)

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, region: Region | None = None) -> Tensor:
        base, _, end = name.rpartition(".")
        if base not in self._bases or end not in ("weight", "weight_scale", "weight_zero"):
            return self._directory.read(name, region)
        whole = self._read_fp8(base, end) if self._stored.kind == "fp8" else self._read_int4(base, end)
        return whole if region is None else region.of(whole)

    def identity(self) -> Mapping[str, str]:
        return self._directory.identity()

    def _describe(self, raw: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        ends = (".weight", _SCALE) if self._stored.kind == "fp8" else (".qweight", ".qzeros", ".scales", ".g_idx")
        packed = {base + end for base in self._bases for end in ends}
        infos = {name: info for name, info in raw.items() if name not in packed and not name.endswith(_NOT_READ)}
        for base in self._bases:
            shape, info = self._shape(base, raw)
            infos[f"{base}.weight"] = TensorInfo(shape, info.file, info.num_bytes)
            if self._with_grid:
                num_groups = shape[1] // self._stored.group_size if self._stored.group_size else 1
                zero = {base + _ZERO} if self._stored.kind == "int4" else set()
                for name in {base + _SCALE} | zero:
                    infos[name] = TensorInfo((shape[0], num_groups), info.file, 4 * shape[0] * num_groups)
        return infos

    def _shape(self, base: str, raw: Mapping[str, TensorInfo]) -> tuple[tuple[int, int], TensorInfo]:
        """[out, in] of a weight, and its codes' description."""
        name = f"{base}.weight" if self._stored.kind == "fp8" else f"{base}.qweight"
        for needed in (name,) if self._stored.kind == "fp8" else (name, f"{base}.qzeros", f"{base}.scales"):
            if needed not in raw:
                raise CheckpointError("model.safetensors", f"has no {needed} beside the rest of {base}")
        rows, columns = raw[name].shape
        if self._stored.method == "awq":
            return (columns * 8, rows), raw[name]
        if self._stored.method == "gptq":
            return (columns, rows * 8), raw[name]
        return (rows, columns), raw[name]

    def _read_fp8(self, base: str, end: str) -> Tensor:
        codes_OI = self._directory.read_codes(f"{base}.weight")
        scales = self._directory.read_codes(base + _SCALE).to(torch.float32)
        scales_O1 = scales.reshape(-1, 1).expand(codes_OI.shape[0], 1)
        return scales_O1 if end == "weight_scale" else codes_OI.to(torch.float32) * scales_O1

    def _read_int4(self, base: str, end: str) -> Tensor:
        scales_OG = self._directory.read_codes(f"{base}.scales").to(torch.float32).t()
        if end == "weight_scale":
            return scales_OG
        words = self._directory.read_codes(f"{base}.qzeros")
        awq = self._stored.method == "awq"
        zeros_OG = (awq_codes(words) if awq else gptq_zeros(words, self._stored.zero_offset)).to(torch.float32)
        if end == "weight_zero":
            return zeros_OG
        words = self._directory.read_codes(f"{base}.qweight")
        codes_OI = (awq_codes(words) if awq else gptq_codes(words)).to(torch.float32)
        self._check_order(base, codes_OI.shape[1])
        codes_OGI = codes_OI.reshape(*scales_OG.shape, -1)
        return ((codes_OGI - zeros_OG[..., None]) * scales_OG[..., None]).flatten(1)

    def _check_order(self, base: str, in_size: int) -> None:
        name = f"{base}.g_idx"
        if name not in self._directory.tensors():
            return
        in_order = torch.arange(in_size, dtype=torch.int32) // self._stored.group_size
        if not torch.equal(self._directory.read_codes(name), in_order):
            raise UnsupportedModelError(f"{name}: groups in the order of activations (desc_act); plain order is known")
