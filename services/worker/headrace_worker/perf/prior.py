"""The step-time model that a replica starts from: the roofline, sampled over steps it may run. Knows no measurement."""

from itertools import product

import numpy as np

from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.non_negative import solve_non_negative
from headrace_worker.perf.step import Roofline, StepLoad
from headrace_worker.perf.step_model import StepModel, features_of

PREFILL_TOKENS = (0, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
CACHED_TOKENS = (0, 4096)
DECODE_ROWS = (0, 1, 4, 16, 64, 256)
CONTEXTS = (128, 1024, 4096, 16384)


def knee_tokens(roofline: Roofline) -> int:
    """Rows at which a product's arithmetic takes as long as reading its weights."""
    compute = roofline.weights.compute if roofline.card.has(roofline.weights.compute) else "fp16"
    efficiency = roofline.efficiency.gemm(compute)
    flops = efficiency.compute * roofline.card.peak_flops(compute)
    bandwidth = efficiency.memory * roofline.card.memory_bandwidth
    return max(1, round(roofline.weights.num_bytes * flops / (2 * bandwidth)))


def prior_model(roofline: Roofline) -> StepModel:
    """Non-negative least squares of relative error over a grid of prefill, decode and mixed steps."""
    loads = list(_grid())
    knee = knee_tokens(roofline)
    times = np.array([roofline.step_time_s(load) for load in loads])
    features = np.array([features_of(load, knee) for load in loads])
    scale = features.max(axis=0)
    shares = features / scale / times[:, None]
    ridge = 1e-9 * np.trace(shares.T @ shares) * np.eye(scale.size)
    coefficients = solve_non_negative(shares.T @ shares + ridge, shares.sum(axis=0)) / scale
    return StepModel(tuple(float(value) for value in coefficients), knee)


def _grid() -> list[StepLoad]:
    loads = []
    for prefill, cached, rows, context in product(PREFILL_TOKENS, CACHED_TOKENS, DECODE_ROWS, CONTEXTS):
        repeats = (rows == 0 and context != CONTEXTS[0]) or (prefill == 0 and cached != CACHED_TOKENS[0])
        if repeats or (prefill == 0 and rows == 0):
            continue
        chunks = (Prefill(prefill, cached),) if prefill else ()
        loads.append(StepLoad(chunks, rows, rows * context))
    return loads
