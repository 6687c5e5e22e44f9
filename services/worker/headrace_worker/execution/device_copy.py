"""Small values to and from a device without waiting for what it computes. On the CPU all of it is at once.

A copy between pageable memory and a GPU waits for the stream; one of pinned memory takes its turn in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of `values` on the device."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


class Readback:
    """Tensors on their way to the host; only `wait` waits, and not for what was launched after them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        if not tensors or tensors[0].device.type != "cuda":
            self._host = list(tensors)
            return
        self._host = [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in tensors]
        for host, tensor in zip(self._host, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> list[Tensor]:
        """In the order in which they were given."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
