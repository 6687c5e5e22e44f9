"""How much CPU time the matching of one sequence's grammar may take: a burst, and a sustained share per token.

An ambiguous grammar costs more with every token; its sequence ends before its neighbours feel it. Pure.
"""

from __future__ import annotations

_PER_TOKEN_S = 0.01
_BURST_S = 0.25


class MatchBudget:
    """A bucket of CPU seconds that every token refills."""

    def __init__(self, per_token_s: float = _PER_TOKEN_S, burst_s: float = _BURST_S) -> None:
        self._per_token_s, self._burst_s = per_token_s, burst_s
        self._debt_s = 0.0

    def spend(self, cpu_s: float) -> None:
        """Time that was spent, by whichever thread."""
        self._debt_s += cpu_s

    def next_token(self) -> bool:
        """A token is done; False if it has cost more than there was."""
        self._debt_s = max(0.0, self._debt_s - self._per_token_s)
        return self._debt_s <= self._burst_s
