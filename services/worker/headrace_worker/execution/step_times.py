"""How long steps take here: starts from what warm-up measured, learns from every step since. Knows plans, no tensors.

It is the predictor by which prompt chunks are cut to inter-token budgets and an overdue step is told from a long one.
"""

from __future__ import annotations

from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.online_fit import OnlineFit
from headrace_worker.perf.step import StepLoad
from headrace_worker.perf.step_model import StepModel
from headrace_worker.scheduling.plan import Plan

# A fit costs some 100 microseconds: steps that follow one another faster are sampled.
_LEAST_GAP_S = 0.02
_KNEE_TOKENS = 256
_LEAST_S = 1e-7


def measured_prior(small_s: float, large_s: float, large_tokens: int) -> StepModel:
    """A first model from two measured steps: a constant, and a time per token."""
    per_token_s = max((large_s - small_s) / large_tokens, _LEAST_S)
    return StepModel((max(small_s, _LEAST_S), per_token_s, 0.0, 0.0, 0.0, 0.0), _KNEE_TOKENS)


class StepTimes:
    """The fitted model of one replica. The clock is an argument, in seconds."""

    def __init__(self, prior: StepModel) -> None:
        self._fit = OnlineFit(prior)
        self._model = prior
        self._last_s = float("-inf")

    @property
    def model(self) -> StepModel:
        """As fitted so far."""
        return self._model

    def predict_step_s(
        self, prefill_tokens: int, decode_rows: int, context_tokens: int, cached_tokens: int = 0
    ) -> float:
        return self._model.predict_step_s(prefill_tokens, decode_rows, context_tokens, cached_tokens)

    def predict(self, plan: Plan) -> float:
        """Seconds of this step."""
        return self._model.predict(load_of(plan))

    def observe(self, plan: Plan, took_s: float, now: float) -> None:
        if now - self._last_s < _LEAST_GAP_S:
            return
        self._last_s = now
        self._fit.observe(load_of(plan), took_s)
        self._model = self._fit.model


def load_of(plan: Plan) -> StepLoad:
    """Rows of one token decode; longer ones are chunks of prompts over what is cached before them."""
    chunks = tuple(Prefill(len(row.token_ids), row.start) for row in plan.rows if len(row.token_ids) > 1)
    decodes = [row.start + 1 for row in plan.rows if len(row.token_ids) == 1]
    return StepLoad(chunks, len(decodes), sum(decodes))
