"""How long a sum over the tensor group takes here, by message size. Every rank of the group calls it at once."""

from __future__ import annotations

import statistics
import time

import torch

from headrace_worker.parallel.collectives import Collectives

CPU_SIZES = (1 << 12, 1 << 15, 1 << 18, 1 << 20)
GPU_SIZES = (1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
_TRIES = 9
_UNCOUNTED = 2


def measure_all_reduce(group: Collectives) -> tuple[tuple[int, float], ...]:
    """(bytes, median seconds) of float32 sums on this rank; nothing for a tensor group of one."""
    if group.place.layout.tensor == 1:
        return ()
    on_gpu = group.device.type == "cuda"
    return tuple((size, _median_s(group, size)) for size in (GPU_SIZES if on_gpu else CPU_SIZES))


def _median_s(group: Collectives, num_bytes: int) -> float:
    x = torch.zeros(num_bytes // 4, dtype=torch.float32, device=group.device)
    took_s = []
    for _ in range(_UNCOUNTED + _TRIES):
        started_s = time.perf_counter()
        x = group.all_reduce(x)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        took_s.append(time.perf_counter() - started_s)
    return statistics.median(took_s[_UNCOUNTED:])
