"""Measures this host for `cards.CpuMeasurement`. The one impure module of `perf`: it reads clocks and memory sizes.

float32 products of 768 x 768 give the arithmetic rate, a sum over 256 MB the read rate, a copy the copy rate.
The best of a few tries is taken: other processes can only make a try slower.
"""

import os
import time
from collections.abc import Callable

import numpy as np

from headrace_worker.perf.cards import CpuMeasurement

NUM_TRIES = 5
MATRIX = 768
BUFFER_BYTES = 1 << 28


def measure_cpu() -> CpuMeasurement:
    """Runs the probe; about a second."""
    matrix = np.ones((MATRIX, MATRIX), dtype=np.float32)
    buffer = np.ones(BUFFER_BYTES // 8, dtype=np.float64)
    target = np.empty_like(buffer)
    product_s = _best_s(lambda: matrix @ matrix)
    read_s = _best_s(buffer.sum)
    copy_s = _best_s(lambda: np.copyto(target, buffer))
    return CpuMeasurement(
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        flops_fp32=2 * MATRIX**3 / product_s,
        memory_bandwidth=BUFFER_BYTES / read_s,
        copy_bandwidth=BUFFER_BYTES / copy_s,
        num_cores=len(os.sched_getaffinity(0)),
    )


def _best_s(run: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(NUM_TRIES):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best
