"""One attempt of a response on one replica: where it stands and what it cost."""

from __future__ import annotations

from enum import IntEnum

from .choice import Choice
from .events import Decision
from .settlement import AttemptRecord


class AttemptState(IntEnum):
    """An attempt only moves down this list."""

    ROUTING = 0
    QUEUED = 1
    RUNNING = 2
    ENDED = 3


class Attempt:
    """Mutable state of one attempt; numbers start at 1."""

    __slots__ = ("choices", "decision", "lost", "num_cached", "number", "outcome", "reached", "state", "submitted")

    def __init__(self, number: int, num_choices: int) -> None:
        self.number = number
        self.state = AttemptState.ROUTING
        self.reached = AttemptState.ROUTING
        self.decision: Decision | None = None
        self.submitted = False
        self.lost = False
        self.outcome = ""
        self.num_cached = 0
        self.choices = [Choice(index) for index in range(num_choices)]

    @property
    def num_generated(self) -> int:
        return sum(choice.num_generated for choice in self.choices)

    @property
    def awaits_finals(self) -> bool:
        """Whether the worker still has something to say about it."""
        return not self.lost and self.reached >= AttemptState.RUNNING and any(c.final is None for c in self.choices)

    @property
    def phase(self) -> str:
        """Where it was when it ended, for the router's books."""
        if not self.submitted:
            return "routed"
        if self.reached < AttemptState.RUNNING:
            return "queued"
        return "decode" if any(choice.num_received for choice in self.choices) else "prefill"

    def advance(self, state: AttemptState) -> None:
        self.state = state
        if state < AttemptState.ENDED:
            self.reached = state

    def record(self) -> AttemptRecord:
        assert self.decision is not None, "only a submitted attempt has a record"
        finals = [choice.final for choice in self.choices if choice.final is not None]
        return AttemptRecord(
            attempt=self.number,
            replica_id=self.decision.replica_id,
            replica_epoch=self.decision.replica_epoch,
            decision_id=self.decision.decision_id,
            outcome=self.outcome,
            num_generated=self.num_generated,
            device_us=sum(final.device_us for final in finals),
            prefill=next((final.prefill for final in finals if final.prefill is not None), None),
        )
