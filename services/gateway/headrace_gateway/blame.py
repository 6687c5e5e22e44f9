"""Which phase broke a response's budget. Pure.

For the first text each phase has an allowance (DESIGN 5): prefill what was predicted, the queue what the class leaves
beside it and the delivery reserve, and everything else together the reserve. To blame is whoever is furthest over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allowances:
    """Seconds."""

    ttft_s: float
    predicted_prefill_s: float
    reserve_s: float

    def of(self, phase: str) -> float:
        if phase == "prefill":
            return self.predicted_prefill_s
        if phase == "queue":
            return max(0.0, self.ttft_s - self.predicted_prefill_s - self.reserve_s)
        return self.reserve_s


def late_first_text(allowances: Allowances, spent_s: Mapping[str, float]) -> str:
    """`spent_s`: seconds until the first text by phase: gate, route, queue, prefill, deliver."""
    assert spent_s, "a first text has had some phase"
    return max(spent_s, key=lambda phase: spent_s[phase] - allowances.of(phase))


def late_gap(budget_s: float, worst_at_worker_s: float) -> str:
    """A gap that the worker did not make was made on the way to the client."""
    return "decode" if worst_at_worker_s > budget_s else "deliver"
