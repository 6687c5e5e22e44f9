"""What a response was promised and how long each wait may take: the constants of one state machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """Bounds and time limits of one response, durations in seconds.

    `total_s` is the platform's longest response; `client_deadline_s` is what the client itself allows (None: no
    deadline), and the response ends `deadline_margin_s` before it.
    """

    num_choices: int
    num_prompt_tokens: int
    total_s: float
    client_deadline_s: float | None = None
    deadline_margin_s: float = 0.1
    final_wait_s: float = 0.5
    """How long an ending waits for the worker's finals, which alone know what was generated past the end."""
    queue_grace_s: float = 2.0
    """The worker enforces the queue deadline; only this long after it the gateway stops believing in an answer."""
    max_busy_reroutes: int = 2
    max_moves: int = 1

    def waits_until(self, now: float, ends_at: float) -> float:
        """How long an ending that begins `now` may wait for finals; the settlement too must fit before the deadline."""
        return min(now + self.final_wait_s, max(now, ends_at + self.deadline_margin_s / 2))

    def ends_at(self, now: float) -> float:
        """When a response that starts `now` must have ended."""
        if self.client_deadline_s is None:
            return now + self.total_s
        return now + max(0.0, min(self.total_s, self.client_deadline_s - self.deadline_margin_s))
