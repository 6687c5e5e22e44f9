"""The attempts of one response and where they went: routes, submits, cancels and reports, each exactly once.

Appends to a list of outputs that its caller owns. Does not decide whether to try again.
"""

from __future__ import annotations

from .attempt import Attempt, AttemptState
from .outputs import Ack, Cancel, Output, Report, Route, ScreenClose, Submit

REROUTABLE = frozenset({"busy", "draining"})
"""Refusals by one replica that say nothing about the others."""

OF_PREFILL = frozenset({"prefill_lost", "kv_expired"})
"""Failures of a replica because of the one that prefilled for it."""


class Placement:
    """All attempts, oldest first, and the replicas that must not be picked again."""

    __slots__ = ("attempts", "excluded", "num_choices")

    def __init__(self, num_choices: int) -> None:
        self.num_choices = num_choices
        self.attempts: list[Attempt] = []
        self.excluded: tuple[str, ...] = ()

    @property
    def current(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    def find(self, number: int) -> Attempt | None:
        return self.attempts[number - 1] if 0 < number <= len(self.attempts) else None

    def route(self, out: list[Output]) -> None:
        """Begin the next attempt."""
        attempt = Attempt(len(self.attempts) + 1, self.num_choices)
        self.attempts.append(attempt)
        out.append(Route(attempt.number, self.excluded))

    def exclude(self, attempt: Attempt, reason: str = "") -> None:
        """Never pick whoever failed again: of a pair that is the prefill replica, where it was the one."""
        decision = attempt.decision
        assert decision is not None, "only a routed attempt has a replica"
        failed = decision.prefill_id if reason in OF_PREFILL else ""
        self.excluded = (*self.excluded, failed or decision.replica_id)

    def submit(self, attempt: Attempt, queue_s: float, total_s: float, out: list[Output]) -> None:
        assert attempt.decision is not None, "an attempt is routed before it is submitted"
        attempt.advance(AttemptState.QUEUED)
        attempt.submitted = True
        out.append(Submit(attempt.number, attempt.decision, queue_s, total_s))

    def cancel(self, attempt: Attempt, reason: str, out: list[Output]) -> None:
        """Stop what still runs of an attempt; a choice that ended or was stopped is not told again."""
        if not attempt.submitted or attempt.state is AttemptState.ENDED:
            return
        live = [choice for choice in attempt.choices if choice.final is None and not choice.cancelled]
        if len(live) == self.num_choices:
            out.append(Cancel(attempt.number, -1, reason, None))
        else:
            out.extend(Cancel(attempt.number, choice.index, reason, None) for choice in live)
        for choice in live:
            choice.cancelled = True

    def report(self, attempt: Attempt, outcome: str, reason: str, out: list[Output]) -> None:
        """End an attempt and tell the router; nothing if it ended before or was never routed."""
        if attempt.state is AttemptState.ENDED or attempt.decision is None:
            return
        attempt.advance(AttemptState.ENDED)
        attempt.outcome = outcome
        decision_id = attempt.decision.decision_id
        out.append(Report(attempt.number, decision_id, outcome, reason, attempt.phase, attempt.num_generated))

    def abandon(self, attempt: Attempt, reason: str, out: list[Output]) -> None:
        """Leave a replica that failed: stop what may still run there and never pick it again."""
        self.cancel(attempt, "superseded", out)
        if any(choice.num_screened_chars or choice.reason for choice in attempt.choices):
            out.append(ScreenClose(attempt.number))
        self.report(attempt, "lost", reason, out)
        self.exclude(attempt, reason)

    def acknowledge(self, out: list[Output]) -> None:
        """All finals that arrived are in the books; of one that did not, the tokens that did."""
        for attempt in self.attempts:
            arrived = [choice.final is not None for choice in attempt.choices]
            if any(arrived):
                out.append(Ack(attempt.number, None if all(arrived) else attempt.num_generated))
