"""Ways to multiply rows by a weight: plain, transposed once, in panels, batch-invariant. Torch twins; knows no layer.

A `Gemm` is chosen once, at start. `pack` turns a weight into the form that `multiply` wants, so that any copy is made
at load and never in a step.
"""

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

INVARIANT_HEIGHT = 16
"""Rows of every product in batch-invariant mode: enough to use the vector units, little waste for one decode."""

PANEL_WIDTHS = (384, 320, 256, 192, 128)
"""Columns of a panel, the first that divides a weight's width. Measured on AVX-512 with MKL; 96 and less lose."""
HEAD_WIDTHS = (256, 384, 320, 192, 128)
"""The same for weights of more than HEAD_PANELS panels: output heads."""
HEAD_PANELS = 16
MIN_PANELLED = 768
"""A narrower weight's lines are close enough as they are."""
MIN_BATCHED_ROWS, MAX_BATCHED_ROWS = 5, 64
"""Between these the panels are one batched product: its threads share the panels, not the few rows. Fewer rows are
better multiplied panel by panel, too, while these are few."""
MOST_BLOCK_ROWS, FEWEST_BLOCK_ROWS = 128, 64
"""Rows of a block where many rows are multiplied by a narrow weight: a block's rows stay in a core's cache."""

Packed: TypeAlias = Any
"""What a gemm's own `pack` made: a tensor, or codes with their scales. No other gemm can read it."""


class Gemm(ABC):
    """rows [T, in] times weight [out, in], plus bias [out]."""

    name: str

    @abstractmethod
    def pack(self, weight_OI: Tensor) -> Packed:
        """The weight in the layout that `multiply` reads; may be the same tensor."""

    @abstractmethod
    def multiply(self, x_TI: Tensor, packed: Packed, bias_O: Tensor | None) -> Tensor:
        """[T, in] -> [T, out] in the dtype of x."""

    def multiply_in_panels(self, x_TI: Tensor, packed: Packed, bias_O: Tensor | None) -> Tensor:
        """`multiply`, or the same in an even number of panels of columns [P, T, out / P] where that spares a copy."""
        return self.multiply(x_TI, packed, bias_O)


class PlainGemm(Gemm):
    """The weight as it was stored."""

    name = "plain"

    def pack(self, weight_OI: Tensor) -> Tensor:
        return weight_OI

    def multiply(self, x_TI: Tensor, packed: Packed, bias_O: Tensor | None) -> Tensor:
        return functional.linear(x_TI, packed, bias_O)


class TransposedGemm(Gemm):
    """The weight stored [in, out]: on CPU float32 up to twice as fast as [out, in] for 2 to 32 rows."""

    name = "transposed"

    def pack(self, weight_OI: Tensor) -> Tensor:
        return weight_OI.t().contiguous()

    def multiply(self, x_TI: Tensor, packed: Packed, bias_O: Tensor | None) -> Tensor:
        return torch.mm(x_TI, packed) if bias_O is None else torch.addmm(bias_O, x_TI, packed)


class PanelGemm(TransposedGemm):
    """Wide weights stored as panels [out / width, in, width] for CPU float32; narrow ones as TransposedGemm has them.

    A step of decodes reads every weight once and multiplies it by few rows: what costs is the reading. The lines of a
    transposed wide weight are far apart, those of a panel lie together: at 16 rows a gate-and-up product takes three
    quarters of the time, an output head two thirds.
    """

    name = "panel"

    def pack(self, weight_OI: Tensor) -> Tensor:
        packed_IO = super().pack(weight_OI)
        out_size = packed_IO.shape[1]
        widths = HEAD_WIDTHS if out_size > HEAD_PANELS * max(PANEL_WIDTHS) else PANEL_WIDTHS
        width = next((each for each in widths if out_size % each == 0), 0)
        if not width or out_size < MIN_PANELLED:
            return packed_IO
        return packed_IO.view(-1, out_size // width, width).transpose(0, 1).contiguous()

    def multiply(self, x_TI: Tensor, packed: Packed, bias_O: Tensor | None) -> Tensor:
        if packed.dim() == 2:
            return _multiply_row_blocks(x_TI, packed, bias_O)
        num_rows = x_TI.shape[0]
        num_panels, _, width = packed.shape
        if num_rows > MAX_BATCHED_ROWS or (num_rows < MIN_BATCHED_ROWS and num_panels <= HEAD_PANELS):
            # Many rows keep all threads busy panel by panel, and would take long to copy together afterwards.
            out_TO = x_TI.new_empty(num_rows, num_panels * width)
            for panel_IW, out_TW in zip(packed, out_TO.split(width, dim=1), strict=True):
                torch.mm(x_TI, panel_IW, out=out_TW)
        else:
            out_PTW = torch.bmm(x_TI.expand(num_panels, *x_TI.shape), packed)
            out_TO = out_PTW.transpose(0, 1).reshape(num_rows, num_panels * width)
        return out_TO if bias_O is None else out_TO.add_(bias_O)

    def multiply_in_panels(self, x_TI: Tensor, packed: Packed, bias_O: Tensor | None) -> Tensor:
        num_rows = x_TI.shape[0]
        if packed.dim() == 2 or packed.shape[0] % 2 or num_rows < MIN_BATCHED_ROWS:
            return self.multiply(x_TI, packed, bias_O)
        num_panels, _, width = packed.shape
        out_PTW = torch.bmm(x_TI.expand(num_panels, *x_TI.shape), packed)
        return out_PTW if bias_O is None else out_PTW.add_(bias_O.view(num_panels, 1, width))


def _multiply_row_blocks(x_TI: Tensor, packed_IO: Tensor, bias_O: Tensor | None) -> Tensor:
    """One product whose threads take blocks of rows each, and wait for one another once."""
    num_rows, in_size = x_TI.shape
    num_threads = torch.get_num_threads()
    num_blocks = num_threads * -(-num_rows // (num_threads * MOST_BLOCK_ROWS))
    height = num_rows // num_blocks if num_blocks else 0
    if height < FEWEST_BLOCK_ROWS or not x_TI.is_contiguous():
        return torch.mm(x_TI, packed_IO) if bias_O is None else torch.addmm(bias_O, x_TI, packed_IO)
    out_TO = x_TI.new_empty(num_rows, packed_IO.shape[1])
    end = num_blocks * height
    blocks = x_TI[:end].view(num_blocks, height, in_size)
    torch.bmm(blocks, packed_IO.expand(num_blocks, *packed_IO.shape), out=out_TO[:end].view(num_blocks, height, -1))
    if end < num_rows:
        torch.mm(x_TI[end:], packed_IO, out=out_TO[end:])
    return out_TO if bias_O is None else out_TO.add_(bias_O)


class InvariantGemm(TransposedGemm):
    """Every product has the same height, so a row's result does not depend on how many rows share its step.

    The library picks its kernel, its blocking and its threads by shape; with one shape there is one choice. That a
    row's place within the block does not matter either is checked by `assert_row_invariance`, not assumed.
    """

    name = "invariant"

    def multiply(self, x_TI: Tensor, packed: Packed, bias_O: Tensor | None) -> Tensor:
        num_rows = x_TI.shape[0]
        height = INVARIANT_HEIGHT
        num_padding = -num_rows % height
        padded = functional.pad(x_TI, (0, 0, 0, num_padding)) if num_padding else x_TI.contiguous()
        out = x_TI.new_empty(padded.shape[0], packed.shape[1])
        for start in range(0, padded.shape[0], height):
            torch.mm(padded[start : start + height], packed, out=out[start : start + height])
        out = out[:num_rows]
        return out if bias_O is None else out + bias_O


def assert_row_invariance(packed: Tensor) -> None:
    """Prove on this machine that a row's product is the same bits in every place and beside any neighbours.

    Raises AssertionError when the library breaks the promise of batch-invariant mode for this weight's shape.
    """
    gemm = InvariantGemm()
    generator = torch.Generator().manual_seed(0)
    shape = (INVARIANT_HEIGHT, packed.shape[0])
    noise = torch.randn(shape, generator=generator).to(packed)
    row = torch.randn(shape[1], generator=generator).to(packed)
    alone = gemm.multiply(row[None], packed, None)[0]
    for first in (0, 1):  # the row in every other place, noise between
        block = noise.clone()
        block[first::2] = row
        beside = gemm.multiply(block, packed, None)[first::2]
        differs = (beside != alone).any(-1).nonzero().flatten() * 2 + first
        assert not differs.numel(), f"a row's product depends on its place {differs.tolist()} for {packed.shape}"


def select_gemm(device: torch.device, deterministic: bool) -> Gemm:
    """Batch-invariant when asked for; in panels on CPU; else as stored."""
    if deterministic:
        return InvariantGemm()
    return PanelGemm() if device.type == "cpu" else PlainGemm()
