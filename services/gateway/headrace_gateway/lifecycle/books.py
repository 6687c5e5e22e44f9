"""Closes the books of a response: from its attempts to usage and settlement. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .attempt import Attempt
from .choice import Choice
from .settlement import Counts, Settlement, Usage
from .terms import Terms


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a response ends: kind, typed reason and one sentence for a person."""

    kind: str
    reason: str
    detail: str = ""

    @property
    def cancel_reason(self) -> str:
        """Why the worker is told to stop what still runs."""
        return self.reason if self.reason in _CANCEL_REASONS else "client" if self.kind == "cancelled" else "superseded"


_CANCEL_REASONS = frozenset({"client", "disconnect", "slow_client", "deadline", "content_filter"})


def usage(terms: Terms, current: Attempt) -> Usage:
    """What the client is told: output of the attempt that answered, also when it is refunded."""
    return Usage(terms.num_prompt_tokens, current.num_cached, sum(choice.num_output for choice in current.choices))


def settlement(terms: Terms, attempts: Sequence[Attempt], verdict: Verdict, created: bool) -> Settlement:
    """The closing entry; a response that was never created has kind "refused"."""
    counts = Counts(num_prompt=terms.num_prompt_tokens)
    if attempts:
        counts = _counts(terms, attempts[-1], sum(attempt.num_generated for attempt in attempts[:-1]), verdict)
    entry = Settlement(
        created=created,
        kind=verdict.kind,
        reason=verdict.reason,
        counts=counts,
        attempts=tuple(attempt.record() for attempt in attempts if attempt.submitted),
        screening_verdict=_screening_verdict(attempts[-1].choices if created else (), verdict),
    )
    entry.check()
    return entry


def _counts(terms: Terms, current: Attempt, num_old: int, verdict: Verdict) -> Counts:
    choices = current.choices
    blocked = verdict.reason == "content_filter"
    num_redacted = sum(choice.num_redacted for choice in choices)
    num_output = sum(choice.num_output for choice in choices)
    num_delivered = sum(_num_delivered(choice) for choice in choices)
    num_held = num_output - num_delivered - num_redacted if blocked else 0
    return Counts(
        num_prompt=terms.num_prompt_tokens,
        num_cached=current.num_cached,
        num_output=num_output,
        num_delivered=num_delivered,
        num_withheld=num_redacted + num_held,
        num_stop_overshoot=sum(choice.num_overshoot for choice in choices),
        num_late_step=sum(choice.num_late for choice in choices),
        num_old_attempt=num_old,
    )


def _num_delivered(choice: Choice) -> int:
    """A finished choice answers for all its tokens (end token, stop string), any other for those it showed."""
    whole = choice.finished and choice.reason != "content_filter"
    return (choice.num_output if whole else choice.num_shown) - choice.num_redacted


def _screening_verdict(choices: Sequence[Choice], verdict: Verdict) -> str:
    if verdict.reason == "content_filter":
        return "blocked"
    if not choices or not all(choice.finished and choice.screened for choice in choices):
        return ""
    if any(choice.num_redacted for choice in choices):
        return "redacted"
    return "flagged" if any(choice.flagged for choice in choices) else "passed"
