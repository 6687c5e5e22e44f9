"""Activations. Torch's `silu` rounds differently at the ends of its vector loops: batch-invariant mode has a twin."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def invariant_silu(x: Tensor) -> Tensor:
    """x * sigmoid(x) from operations whose bits do not depend on an element's place in memory."""
    return x / (1.0 + torch.exp(-x))


def select_silu(invariant: bool) -> Callable[[Tensor], Tensor]:
    """The twin for the mode."""
    return invariant_silu if invariant else functional.silu
