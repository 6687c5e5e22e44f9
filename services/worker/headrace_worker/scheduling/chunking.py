"""How many prompt tokens a step may take beside its decodes, so that no running stream waits too long for its token.

Algorithm: Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve" (OSDI 2024): the
largest chunk whose predicted step still keeps the inter-token budget, found by bisection over a step-time model. The
model is a port: this module does not know the machine.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class StepTimePredictor(Protocol):
    """Predicts a step. It must not fall when `prefill_tokens` rises."""

    def predict_step_s(
        self, prefill_tokens: int, decode_rows: int, context_tokens: int, cached_tokens: int = 0
    ) -> float:
        """Seconds of a step of one chunk of `prefill_tokens` that sees `cached_tokens` before it, and so many decode
        rows that read `context_tokens` of KV in all.
        """


class Beside(NamedTuple):
    """What a chunk meets in its step: decode rows, the KV tokens that they read, and its prompt's tokens before it."""

    num_decodes: int
    context_tokens: int
    cached_tokens: int


def prefill_budget(predictor: StepTimePredictor, gap_s: float, beside: Beside, bounds: tuple[int, int]) -> int:
    """The most prompt tokens in [low, high] = `bounds`, in steps of `low` (one page), with a step of at most `gap_s`.

    `low` is the answer even if it does not keep the budget: prompts must come forward in every step.
    """
    low, high = bounds
    if high <= low or predictor.predict_step_s(high, *beside) <= gap_s:
        return max(low, high)
    # Invariant: `fits` pages keep the budget (or are the first), `misses` do not.
    fits, misses = 1, -(-high // low)
    while misses - fits > 1:
        middle = (fits + misses) // 2
        if predictor.predict_step_s(middle * low, *beside) <= gap_s:
            fits = middle
        else:
            misses = middle
    return fits * low
