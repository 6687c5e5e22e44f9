"""Weights of 4-bit codes in groups along their input: packed, unpacked, rounded to. Torch; runs anywhere."""

from dataclasses import dataclass

import torch
from torch import Tensor

NIBBLES = 8
"""Codes of one 32-bit word, the first in the lowest bits."""
MOST_CODE = 15


@dataclass(frozen=True)
class Int4Weight:
    """Codes of 8 neighbouring inputs in a word; weight [o, i] = (code - zero) * scale of the group of i."""

    words_WO: Tensor
    """int32 [in / 8, out]"""
    scales_GO: Tensor
    zeros_GO: Tensor
    """Both in the dtype of activations."""

    @property
    def group_size(self) -> int:
        return self.words_WO.shape[0] * NIBBLES // self.scales_GO.shape[0]

    @classmethod
    def pack(cls, codes_OI: Tensor, scales_OG: Tensor, zeros_OG: Tensor, dtype: torch.dtype) -> "Int4Weight":
        """From codes 0 .. 15."""
        assert codes_OI.shape[1] % (NIBBLES * scales_OG.shape[1]) == 0, f"{codes_OI.shape} in {scales_OG.shape} groups"
        nibbles_WNO = codes_OI.t().to(torch.int32).reshape(-1, NIBBLES, codes_OI.shape[0])
        words_WO = torch.zeros_like(nibbles_WNO[:, 0])
        for place in range(NIBBLES):
            words_WO |= nibbles_WNO[:, place] << (4 * place)
        return cls(words_WO.contiguous(), scales_OG.t().to(dtype).contiguous(), zeros_OG.t().to(dtype).contiguous())

    def dequantize(self) -> Tensor:
        """[in, out] in the dtype of the scales, rounded once."""
        shifts_N1 = 4 * torch.arange(NIBBLES, device=self.words_WO.device, dtype=torch.int32)[:, None]
        codes = ((self.words_WO[:, None] >> shifts_N1) & MOST_CODE).flatten(0, 1)
        grouped = codes.view(self.scales_GO.shape[0], -1, codes.shape[1]).to(torch.float32)
        weight = (grouped - self.zeros_GO[:, None]) * self.scales_GO[:, None].to(torch.float32)
        return weight.flatten(0, 1).to(self.scales_GO.dtype)


def quantize_groups(weight_OI: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Round to nearest: (codes [O, I], scales and zeros [O, G]); each group's range, which holds 0, is its 16 codes."""
    grouped = weight_OI.to(torch.float32).view(weight_OI.shape[0], -1, group_size)
    low, high = grouped.amin(-1).clamp(max=0.0), grouped.amax(-1).clamp(min=0.0)
    scales = ((high - low) / MOST_CODE).clamp(min=1e-10)
    zeros = (-low / scales).round()
    codes = ((grouped / scales[..., None]).round() + zeros[..., None]).clamp(0, MOST_CODE)
    return codes.flatten(1).to(torch.uint8), scales, zeros


def codes_on_grid(weight_OI: Tensor, scales_OG: Tensor, zeros_OG: Tensor) -> Tensor:
    """The codes [O, I] of a weight that was made from codes with these scales and zeros."""
    grouped = weight_OI.to(torch.float32).view(*scales_OG.shape, -1)
    codes = (grouped / scales_OG[..., None].to(torch.float32)).round() + zeros_OG[..., None].to(torch.float32)
    return codes.clamp(0, MOST_CODE).flatten(1).to(torch.uint8)
