"""Rotary position embedding (Su et al. 2021), halves convention of Hugging Face checkpoints.

The `llama3` stretch follows the Llama 3.1 reference code (`apply_scaling`): long wavelengths are slowed by `factor`,
short ones are kept, those between are blended.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_worker.kernels.rotation import Rotation


@dataclass(frozen=True)
class Llama3Stretch:
    """Parameters of the llama3 rope scaling."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


def inverse_frequencies(head_dim: int, theta: float, stretch: Llama3Stretch | None = None) -> Tensor:
    """float32 [D / 2]: radians per position of each pair of elements."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    inv_freq = 1.0 / (theta**exponents)
    if stretch is None:
        return inv_freq
    wavelength = 2 * math.pi / inv_freq
    longest_kept = stretch.original_max_position / stretch.high_freq_factor
    shortest_slowed = stretch.original_max_position / stretch.low_freq_factor
    share = stretch.original_max_position / wavelength - stretch.low_freq_factor
    share = share / (stretch.high_freq_factor - stretch.low_freq_factor)
    blended = (1 - share) * inv_freq / stretch.factor + share * inv_freq
    slowed = torch.where(wavelength > shortest_slowed, inv_freq / stretch.factor, blended)
    return torch.where(wavelength < longest_kept, inv_freq, slowed)


class RotaryTable:
    """All rotations up to `max_position`, so that a position's values never depend on its neighbours in a step."""

    def __init__(self, inv_freq: Tensor, max_position: int, dtype: torch.dtype, device: torch.device) -> None:
        angles = torch.arange(max_position, dtype=torch.float32)[:, None] * inv_freq[None, :]
        sin = angles.sin()
        self._cos_LD = torch.cat((angles.cos(), angles.cos()), dim=-1).to(device=device, dtype=dtype)
        self._sin_LD = torch.cat((-sin, sin), dim=-1).to(device=device, dtype=dtype)

    def at(self, positions_T: Tensor) -> Rotation:
        """The rotations of one step's rows."""
        return Rotation(self._cos_LD[positions_T][:, None, :], self._sin_LD[positions_T][:, None, :])
