"""How long steps and prompts take, from the coefficients that a replica publishes. Pure. Knows no card and no model.

Features are those of the worker's step model: step (1), tokens, decode_rows, context_tokens, attention_pairs,
tokens_beyond_K; a name that is not known here belongs to a later release and adds nothing.
"""

from collections.abc import Mapping
from typing import NamedTuple

_BEYOND = "tokens_beyond_"
# Prompts are computed in chunks; this is the worker's own default.
CHUNK_TOKENS = 512


class StepCost(NamedTuple):
    """Coefficients in seconds per unit; ``knees``: (tokens of a step, seconds per token beyond)."""

    step: float = 0.0
    tokens: float = 0.0
    decode_rows: float = 0.0
    context_tokens: float = 0.0
    attention_pairs: float = 0.0
    knees: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, coefficients: Mapping[str, float]) -> "StepCost":
        names = (name for name in coefficients if name.startswith(_BEYOND))
        knees = ((name.removeprefix(_BEYOND), coefficients[name]) for name in names)
        known = {name: coefficients[name] for name in cls._fields if name != "knees" and name in coefficients}
        return cls(**known, knees=tuple((int(knee), cost) for knee, cost in knees if knee.isdecimal()))

    def prefill_s(self, num_tokens: int, num_cached: int = 0, chunk_tokens: int = CHUNK_TOKENS) -> float:
        """Seconds to compute ``num_tokens`` of a prompt on top of ``num_cached``; 0 if nothing is known."""
        if num_tokens <= 0:
            return 0.0
        num_full, rest = divmod(num_tokens, chunk_tokens)
        # Chunks over keys so far, and each token over those of its own chunk: together every pair of the prompt.
        num_pairs = num_tokens * num_cached + num_tokens**2 / 2
        seconds = (num_full + (rest > 0)) * self.step + num_tokens * self.tokens + num_pairs * self.attention_pairs
        for knee, cost in self.knees:
            if chunk_tokens > knee:
                seconds += cost * (num_full * (chunk_tokens - knee) + max(0, rest - knee))
        return seconds

    def queue_s(self, num_tokens: int) -> float:
        """Seconds that ``num_tokens`` of other prompts take; where one ends is not known, so without pairs."""
        return num_tokens * self.tokens + num_tokens / CHUNK_TOKENS * self.step

    def decode_s(self, num_rows: int, num_context_tokens: int) -> float:
        """Seconds of a step in which ``num_rows`` sequences decode over so many keys in all."""
        return self.step + num_rows * (self.tokens + self.decode_rows) + num_context_tokens * self.context_tokens


UNKNOWN = StepCost()
# Compares replicas of which none has published anything yet: only the proportions matter.
NOMINAL = StepCost(step=0.01, tokens=1e-4, decode_rows=1e-4)


def prefill_s(
    coefficients: Mapping[str, float], num_tokens: int, num_cached: int = 0, chunk_tokens: int = CHUNK_TOKENS
) -> float:
    """`StepCost.prefill_s` of published coefficients."""
    return StepCost.of(coefficients).prefill_s(num_tokens, num_cached, chunk_tokens)
