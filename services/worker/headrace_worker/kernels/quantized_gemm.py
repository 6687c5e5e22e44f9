"""Products with weights of 8 and 4 bits. On CPU twins that round alike and multiply in the model's own type."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_worker.kernels.gemm import Gemm, Packed, PanelGemm
from headrace_worker.kernels.int4_weight import Int4Weight, codes_on_grid, quantize_groups
from headrace_worker.kernels.kv_write import E4M3_MAX, largest_of_rows, to_e4m3

MANY_ROWS = 256
"""From here on a 4-bit weight is dequantized whole: the product costs more than the reading."""
DEFAULT_GROUP = 128
LEAST_GROUP = 16


@dataclass(frozen=True)
class Grid:
    """Scales, and zeros of 4-bit codes, float32 [O, G], that a checkpoint gave a weight; fp8 has one group."""

    scales_OG: Tensor
    zeros_OG: Tensor | None = None

    def to(self, device: torch.device) -> "Grid":
        zeros = None if self.zeros_OG is None else self.zeros_OG.to(device)
        return Grid(self.scales_OG.to(device), zeros)


class QuantizedGemm(Gemm):
    """`pack_on` keeps a checkpoint's codes; `pack` makes some of its own."""

    def pack(self, weight_OI: Tensor) -> Packed:
        return self.pack_on(weight_OI, None)

    def across(self, maximum: Callable[[Tensor], Tensor]) -> "QuantizedGemm":
        """For inputs that ranks share: `maximum` is the largest of each number over them. Codes are those of one rank.

        Scales of groups of inputs need nobody else's.
        """
        return self

    @abstractmethod
    def pack_on(self, weight_OI: Tensor, grid: Grid | None) -> Packed:
        """The weight in codes of `grid`."""


def _alone(largest: Tensor) -> Tensor:
    return largest


def fp8_codes(
    weight_OI: Tensor, grid: Grid | None, maximum: Callable[[Tensor], Tensor] = _alone
) -> tuple[Tensor, Tensor]:
    """(E4M3 codes [O, I], float32 scales [O, 1]), one per output channel, over all ranks that share its inputs."""
    wide = weight_OI.to(torch.float32)
    scales_O1 = grid.scales_OG if grid else (maximum(largest_of_rows(wide)) / E4M3_MAX).clamp(min=1e-12)
    return to_e4m3(wide, scales_O1), scales_O1


def int4_codes(weight_OI: Tensor, grid: Grid | None) -> tuple[Tensor, Tensor, Tensor]:
    """(codes [O, I], scales, zeros [O, G]); without a grid in groups of 128, or of the largest power of two below."""
    if grid is not None:
        assert grid.zeros_OG is not None, "4-bit codes have zeros"
        return codes_on_grid(weight_OI, grid.scales_OG, grid.zeros_OG), grid.scales_OG, grid.zeros_OG
    group = DEFAULT_GROUP
    while weight_OI.shape[1] % group:
        group //= 2
    assert group >= LEAST_GROUP, f"{weight_OI.shape[1]} inputs are no multiple of {LEAST_GROUP}"
    return quantize_groups(weight_OI, group)


@dataclass(frozen=True)
class Fp8Weight:
    codes_OI: Tensor
    scales_1O: Tensor


class Fp8Gemm(QuantizedGemm):
    """E4M3 weights and activations by torch's own product, which is as fast as a card can."""

    name = "fp8"

    def __init__(self, maximum: Callable[[Tensor], Tensor] | None = None) -> None:
        self._maximum = maximum

    def across(self, maximum: Callable[[Tensor], Tensor]) -> "Fp8Gemm":
        return Fp8Gemm(maximum)

    def pack_on(self, weight_OI: Tensor, grid: Grid | None) -> Packed:
        codes_OI, scales_O1 = fp8_codes(weight_OI, grid, self._maximum or _alone)
        return Fp8Weight(codes_OI.contiguous(), scales_O1.t().contiguous())

    def multiply(self, x_TI: Tensor, packed: Packed, bias_O: Tensor | None) -> Tensor:
        from headrace_worker.kernels.quantize_rows import quantize_rows

        assert isinstance(packed, Fp8Weight), "packed by this gemm"
        # Alone one pass over the rows does; shared rows are looked at first, and the ranks agree on the largest.
        largest_T1 = None if self._maximum is None else self._maximum(largest_of_rows(x_TI))
        codes_TI, scales_T1 = quantize_rows(x_TI, largest_T1)
        out_TO = torch._scaled_mm(
            codes_TI, packed.codes_OI.t(), scale_a=scales_T1, scale_b=packed.scales_1O, out_dtype=x_TI.dtype
        )
        return out_TO if bias_O is None else out_TO + bias_O


class Int4Gemm(QuantizedGemm):
    """4-bit weights by our kernel."""

    name = "int4"

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def pack_on(self, weight_OI: Tensor, grid: Grid | None) -> Packed:
        return Int4Weight.pack(*int4_codes(weight_OI, grid), self._dtype)

    def multiply(self, x_TI: Tensor, packed: Packed, bias_O: Tensor | None) -> Tensor:
        from headrace_worker.kernels.int4_product import int4_product

        assert isinstance(packed, Int4Weight), "packed by this gemm"
        few = x_TI.shape[0] < MANY_ROWS
        out_TO = int4_product(x_TI, packed) if few else x_TI @ packed.dequantize()
        return out_TO if bias_O is None else out_TO + bias_O


class Fp8Twin(QuantizedGemm):
    """On CPU: the same codes, multiplied as floats. Saves no memory there."""

    name = "fp8 twin"

    def __init__(self, maximum: Callable[[Tensor], Tensor] = _alone) -> None:
        self._plain = PanelGemm()
        self._maximum = maximum

    def across(self, maximum: Callable[[Tensor], Tensor]) -> "Fp8Twin":
        return Fp8Twin(maximum)

    def pack_on(self, weight_OI: Tensor, grid: Grid | None) -> Packed:
        codes_OI, scales_O1 = fp8_codes(weight_OI, grid, self._maximum)
        return self._plain.pack((codes_OI.to(torch.float32) * scales_O1).to(weight_OI.dtype))

    def multiply(self, x_TI: Tensor, packed: Packed, bias_O: Tensor | None) -> Tensor:
        scale_T1 = (self._maximum(largest_of_rows(x_TI)) / E4M3_MAX).clamp(min=1e-12)
        rounded_TI = (to_e4m3(x_TI, scale_T1).to(torch.float32) * scale_T1).to(x_TI.dtype)
        return self._plain.multiply(rounded_TI, packed, bias_O)


class Int4Twin(QuantizedGemm):
    """On CPU: the same codes, dequantized at load. Saves no memory there."""

    name = "int4 twin"

    def __init__(self) -> None:
        self._plain = PanelGemm()

    def pack_on(self, weight_OI: Tensor, grid: Grid | None) -> Packed:
        weight_IO = Int4Weight.pack(*int4_codes(weight_OI, grid), torch.float32).dequantize()
        return self._plain.pack(weight_IO.t().to(weight_OI.dtype))

    def multiply(self, x_TI: Tensor, packed: Packed, bias_O: Tensor | None) -> Tensor:
        return self._plain.multiply(x_TI, packed, bias_O)


def select_quantized(kind: str, device: torch.device, dtype: torch.dtype) -> QuantizedGemm:
    """fp8 or int4."""
    if device.type == "cpu":
        return Fp8Twin() if kind == "fp8" else Int4Twin()
    return Fp8Gemm() if kind == "fp8" else Int4Gemm(dtype)
