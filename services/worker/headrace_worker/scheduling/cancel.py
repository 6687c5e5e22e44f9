"""Cancels: kept until the scheduler's next move, then applied before anything else it does.

So a cancel takes effect by the second step after it came (one may be in flight), and one that comes between the
forward pass and the outputs of the last step still wins. One for a response that has ended, or never was, does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_worker.scheduling.entrance import Entrance
from headrace_worker.scheduling.running import RunningSet

ANY_ATTEMPT = 0
ALL_CHOICES = -1


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a response, or one choice of it. `reason` is that of the ending ("stop": found a stop string).

    `accepted_count`: how many of the generated tokens the caller has taken; None = all.
    """

    response_id: str
    attempt: int = ANY_ATTEMPT
    choice: int = ALL_CHOICES
    reason: str = "client"
    accepted_count: int | None = None


class Cancels:
    """The pending cancels, and what each ends."""

    def __init__(self, entrance: Entrance, running: RunningSet) -> None:
        self._entrance = entrance
        self._running = running
        self._pending: list[Cancel] = []

    def add(self, cancel: Cancel) -> None:
        self._pending.append(cancel)

    def apply(self, now: float) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        for cancel in pending:
            self._entrance.cancel(cancel.response_id, cancel.attempt, cancel.choice, cancel.reason)
            self._cancel_running(cancel, now)

    def _cancel_running(self, cancel: Cancel, now: float) -> None:
        for group in self._running.attempts(cancel.response_id):
            if cancel.attempt not in (ANY_ATTEMPT, group.request.attempt):
                continue
            for sequence in list(group.live):
                if cancel.choice in (ALL_CHOICES, sequence.choice):
                    self._running.end(group, sequence, cancel.reason, now, cancel.accepted_count)
