"""What twins compute in: float32, or float64 where that is what they are given, to judge a kernel by."""

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.to(torch.float32)
