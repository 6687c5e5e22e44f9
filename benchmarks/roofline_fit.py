"""Fits the constants of `headrace_worker/perf/efficiency.py` on the H100 kernel tables and prints them.

Robust least squares on the logarithm of time (Cauchy weights at 15 %, Levenberg-Marquardt on the logarithm of each
constant). Reads only kernel tables; the end-to-end rows are for validation and this script never opens them.

    python benchmarks/roofline_fit.py
"""

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace_worker.perf import attention as attn
from headrace_worker.perf.attention import AttentionEfficiency, Heads, Prefill
from headrace_worker.perf.cards import card_named
from headrace_worker.perf.collectives import CollectiveEfficiency, all_reduce_time_s
from headrace_worker.perf.gemm import Gemm, GemmEfficiency, gemm_time_s

DATA = Path(__file__).parent / "data" / "roofline"
CARD = card_named("h100-80gib")
OUTLIER = 0.15
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """Fitted constants, in the order of the predictor's parameters, and the residuals log(predicted / measured)."""

    name: str
    constants: Vector
    residuals: Vector

    def __str__(self) -> str:
        errors = np.abs(np.expm1(self.residuals))
        values = ", ".join(f"{value:.4g}" for value in self.constants)
        spread = f"median error {np.median(errors):.1%}, p90 {np.quantile(errors, 0.9):.1%}"
        return f"{self.name}: ({values})  rows {errors.size}, {spread}"


def table(name: str) -> list[dict[str, str]]:
    """Rows of a committed table."""
    with gzip.open(DATA / name, "rt") as lines:
        return list(csv.DictReader(lines))


def fit(name: str, residuals: Callable[[Vector], Vector], start: list[float], num_steps: int = 80) -> Fit:
    """Levenberg-Marquardt from `start` (all positive) on the Cauchy loss of `residuals`."""
    theta, damping = np.log(np.array(start)), 1e-2
    current = residuals(np.exp(theta))
    for _ in range(num_steps):
        jacobian = np.stack(
            [(residuals(np.exp(theta + step)) - current) / 1e-4 for step in 1e-4 * np.eye(theta.size)], 1
        )
        weighted = jacobian / (1 + (current[:, None] / OUTLIER) ** 2)
        hessian, gradient = weighted.T @ jacobian, weighted.T @ current
        for _ in range(10):
            scale = np.diag(np.diag(hessian) + 1e-9)
            trial = theta + np.clip(np.linalg.solve(hessian + damping * scale, -gradient), -0.7, 0.7)
            proposed = residuals(np.exp(trial))
            if _loss(proposed) < _loss(current):
                gained = _loss(current) - _loss(proposed)
                theta, current, damping = trial, proposed, max(damping / 3, 1e-6)
                break
            damping *= 4
        else:
            break
        if gained < 1e-7 * _loss(current):
            break
    return Fit(name, np.exp(theta), current)


def _loss(residuals: Vector) -> float:
    return float(np.log1p((residuals / OUTLIER) ** 2).sum())


def gemm_residuals(dtype: str) -> Callable[[Vector], Vector]:
    """Residuals of matrix products whose weights are `dtype`, as a function of `GemmEfficiency`'s fields."""
    bits, compute = (8, "fp8") if dtype == "fp8" else (16, "fp16")
    rows = [row for row in table("h100_gemm.csv.gz") if row["gemm_dtype"] == dtype]
    gemms = [Gemm(int(row["m"]), int(row["n"]), int(row["k"]), bits, bits / 8, compute) for row in rows]
    measured = _measured(rows)

    def residuals(constants: Vector) -> Vector:
        efficiency = GemmEfficiency(*constants)
        return np.log([gemm_time_s(gemm, CARD, efficiency) for gemm in gemms]) - measured

    return residuals


def prefill_residuals(kv_dtype: str) -> Callable[[Vector], Vector]:
    """Residuals of causal prefill attention, as a function of the four prefill constants."""
    rows = [row for row in table("h100_context_attention.csv.gz") if row["kv_cache_dtype"] == kv_dtype]
    loads = [((Prefill(int(row["isl"])),) * int(row["batch_size"]), _heads(row)) for row in rows]
    measured = _measured(rows)

    def residuals(constants: Vector) -> Vector:
        launch_s, per_token_s, compute, memory = constants
        efficiency = AttentionEfficiency(launch_s, per_token_s, compute, memory, 1, 1, 1, 1)
        return np.log([attn.prefill_time_s(load, heads, CARD, efficiency) for load, heads in loads]) - measured

    return residuals


def decode_residuals(kv_dtype: str, prefill_compute: float) -> Callable[[Vector], Vector]:
    """Residuals of decode attention, as a function of the four decode constants."""
    rows = [row for row in table("h100_generation_attention.csv.gz") if row["kv_cache_dtype"] == kv_dtype]
    loads = [(int(row["batch_size"]), int(row["batch_size"]) * int(row["context_len"]), _heads(row)) for row in rows]
    measured = _measured(rows)

    def residuals(constants: Vector) -> Vector:
        launch_s, per_row_s, per_token_s, memory = constants
        efficiency = AttentionEfficiency(1, 1, prefill_compute, 1, launch_s, per_row_s, per_token_s, memory)
        times = [attn.decode_time_s(batch, tokens, heads, CARD, efficiency) for batch, tokens, heads in loads]
        return np.log(times) - measured

    return residuals


def all_reduce_residuals() -> Callable[[Vector], Vector]:
    """Residuals of the faster of vLLM's all-reduce and NCCL's, as a function of `CollectiveEfficiency`'s fields."""
    fastest: dict[tuple[int, int], float] = {}
    for row in table("h100_all_reduce.csv.gz"):
        key = int(row["num_gpus"]), int(row["num_bytes"])
        fastest[key] = min(fastest.get(key, np.inf), float(row["latency_ms"]) / 1e3)
    measured = np.log(list(fastest.values()))

    def residuals(constants: Vector) -> Vector:
        efficiency = CollectiveEfficiency(*constants)
        return np.log([all_reduce_time_s(size, ranks, CARD, efficiency) for ranks, size in fastest]) - measured

    return residuals


def _measured(rows: list[dict[str, str]]) -> Vector:
    return np.log([float(row["latency_ms"]) / 1e3 for row in rows])


def _heads(row: dict[str, str]) -> Heads:
    kv_bytes = 1 if row["kv_cache_dtype"] == "fp8" else 2
    return Heads(int(row["num_heads"]), int(row["num_key_value_heads"]), 128, kv_bytes)


def fit_all() -> list[Fit]:
    """Every set of constants, in the order of `Efficiency`'s fields."""
    fits = [
        fit("gemm_wide", gemm_residuals("bfloat16"), [3e-6, 3e-10, 0.9, 0.8, 0.4, 3.0, 0.01]),
        fit("gemm_fp8", gemm_residuals("fp8"), [5e-6, 3e-10, 0.9, 0.7, 0.7, 4.0, 4.0]),
    ]
    for kv_dtype, name in (("bfloat16", "attention_wide"), ("fp8", "attention_fp8")):
        prefill = fit(f"{name}.prefill", prefill_residuals(kv_dtype), [12e-6, 4e-9, 0.7, 0.5])
        decode = decode_residuals(kv_dtype, float(prefill.constants[2]))
        fits += [prefill, fit(f"{name}.decode", decode, [11e-6, 2e-8, 2e-10, 0.9])]
    fits.append(fit("collective", all_reduce_residuals(), [4e-6, 0.05, 0.5, 2e-6, 0.6, 0.3]))
    return fits


if __name__ == "__main__":
    for each in fit_all():
        print(each)
