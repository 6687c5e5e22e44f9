"""One step's rotary rotations as tensors (Su et al. 2021, halves convention). Torch; knows no table and no position."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines of one step's rows, each [T, 1, D]; computed once, used by all layers.

    The first half of the sines carries the minus sign of "rotate half", so that `apply` needs no negation.
    """

    cos_T1D: Tensor
    sin_T1D: Tensor

    def apply(self, x_THD: Tensor) -> Tensor:
        """Rotate every head of every row; same shape and dtype."""
        half = x_THD.shape[-1] // 2
        first, second = x_THD[..., :half], x_THD[..., half:]
        turned = x_THD * self.cos_T1D
        turned[..., :half].addcmul_(second, self.sin_T1D[..., :half])
        turned[..., half:].addcmul_(first, self.sin_T1D[..., half:])
        return turned.to(x_THD.dtype)

    @cached_property
    def cos_sin_TD(self) -> Tensor:
        """float32 [T, D]: half of the cosines, then half of the sines; what the kernel reads."""
        half = self.cos_T1D.shape[-1] // 2
        return torch.cat((self.cos_T1D[:, 0, :half], self.sin_T1D[:, 0, half:]), dim=-1).to(torch.float32)
