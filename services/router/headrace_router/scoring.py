"""Which replica: compatibility, then readiness, then one score. Pure: the same state and draw give the same choice.

Version 0 of the score is load alone, in requests; whoever knows what a replica's cache holds adds a term to it. Knows
no stream, no clock and no message.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Why = Literal["", "incompatible", "context", "features", "not_ready", "breaker", "excluded"]


@dataclass(frozen=True)
class Ask:
    """What a request needs of a replica."""

    model: str
    revision: str = ""
    """Empty: any that is there, for during a rollout old and new replicas serve side by side."""
    slo_class: str = ""
    num_prompt_tokens: int = 0
    max_output_tokens: int = 0
    grammar: bool = False
    logprobs: bool = False
    excluded: frozenset[str] = frozenset()

    @property
    def num_tokens(self) -> int:
        """The longest that one choice can become."""
        return self.num_prompt_tokens + self.max_output_tokens


class View(NamedTuple):
    """One replica at the moment of a decision; a tuple, for each decision makes one per replica."""

    id: str
    epoch: str
    model: str
    revision: str
    role: str = "both"
    classes: tuple[str, ...] = ()
    """SLO classes that its pool serves; empty: all."""
    grammar: bool = False
    logprobs: bool = False
    max_context_tokens: int = 0
    """0 = not known: no limit."""
    state: str = "ready"
    connected: bool = True
    """Its own watch is open, so the state is its word and not a memory."""
    breaker_open: bool = False
    fresh: bool = True
    """Its load report is recent."""
    num_running: int = 0
    num_waiting: int = 0
    num_unseen: int = 0
    """Own decisions that no report has listed yet."""
    num_in_flight: int = 0
    """Own decisions whose outcome is not reported yet."""


class Candidate(NamedTuple):
    """What became of one replica in a decision; ``why`` is empty if it was scored."""

    view: View
    why: Why = ""
    detail: str = ""
    score: float = 0.0

    @property
    def terms(self) -> dict[str, float]:
        """Parts of the score by name; they sum to it."""
        return {} if self.why else _terms(self.view)


@dataclass(frozen=True)
class Choice:
    """The decision, with every replica that was looked at."""

    candidates: tuple[Candidate, ...]
    picked: Candidate | None = None

    def filtered(self, why: Why) -> list[View]:
        return [candidate.view for candidate in self.candidates if candidate.why == why]


def choose(ask: Ask, views: Sequence[View], draw: float) -> Choice:
    """The best replica; ``draw`` in [0, 1) decides between equals. None fits: ``picked`` is None."""
    assert 0 <= draw < 1, "a draw lies in [0, 1)"
    candidates = tuple(_judge(ask, view) for view in views)
    best: list[Candidate] = []
    best_rank = (True, math.inf)
    for candidate in candidates:
        # A replica whose load is known goes before one whose load is guessed.
        rank = (not candidate.view.fresh, candidate.score)
        if candidate.why or rank > best_rank:
            continue
        if rank < best_rank:
            best, best_rank = [], rank
        best.append(candidate)
    return Choice(candidates, best[int(draw * len(best))] if best else None)


def _judge(ask: Ask, view: View) -> Candidate:
    why, detail = _refusal(ask, view)
    return Candidate(view, why, detail) if why else Candidate(view, score=sum(_terms(view).values()))


def _terms(view: View) -> dict[str, float]:
    # An old report says nothing; what this router sent there and did not get back is known (decision 18).
    if not view.fresh:
        return {"in_flight": float(view.num_in_flight)}
    return {
        "running": float(view.num_running),
        "waiting": float(view.num_waiting),
        "unseen": float(view.num_unseen),
    }


def _refusal(ask: Ask, view: View) -> tuple[Why, str]:
    if detail := _incompatibility(ask, view):
        return "incompatible", detail
    if not view.connected:
        return "not_ready", "unreachable"
    if view.state != "ready":
        return "not_ready", view.state
    if (ask.grammar and not view.grammar) or (ask.logprobs and not view.logprobs):
        return "features", "lacks grammar" if ask.grammar and not view.grammar else "lacks logprobs"
    if 0 < view.max_context_tokens < ask.num_tokens:
        return "context", f"context of {view.max_context_tokens} tokens"
    if view.id in ask.excluded:
        return "excluded", "excluded by the caller"
    return ("breaker", "breaker open") if view.breaker_open else ("", "")


def _incompatibility(ask: Ask, view: View) -> str:
    if view.model != ask.model:
        return f"model {view.model}"
    if ask.revision and view.revision != ask.revision:
        return f"revision {view.revision}"
    if view.role != "both":
        return f"role {view.role}"
    if view.classes and ask.slo_class not in view.classes:
        return "class not served"
    return ""
