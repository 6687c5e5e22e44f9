"""The books of one response: what it used and what was thrown away.

Knows no price and no limit, and does not refund: policy does, by `kind` (failed and refused are not charged). The
balance that `check` states holds for every settlement.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the client sees them: prompt once, output summed over choices."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int

    @property
    def num_total_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


@dataclass(frozen=True, slots=True)
class Prefill:
    """What another replica did for an attempt: it computed the prompt."""

    replica_id: str
    replica_epoch: str
    device_us: int


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One submitted attempt, for cost and load; `outcome` as in the report to the router."""

    attempt: int
    replica_id: str
    replica_epoch: str
    decision_id: str
    outcome: str
    num_generated: int
    device_us: int
    prefill: Prefill | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of one response.

    `num_output` is to be billed (or refunded, if it failed). Its part `num_delivered` reached the client or stands
    behind a finished choice (end token, stop string); `num_withheld` was kept back or replaced by a content rule.
    """

    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0
    num_delivered: int = 0
    num_withheld: int = 0
    num_stop_overshoot: int = 0
    num_late_step: int = 0
    num_old_attempt: int = 0

    @property
    def num_discarded(self) -> int:
        return self.num_stop_overshoot + self.num_late_step + self.num_old_attempt


@dataclass(frozen=True, slots=True)
class Settlement:
    """The one closing entry of an admitted response.

    `kind` is the terminal's, or "refused" for what ended before `created` (it releases the reservation).
    `screening_verdict` is "" if screening did not run to a verdict, else passed, flagged, redacted or blocked.
    """

    created: bool
    kind: str
    reason: str
    counts: Counts
    attempts: tuple[AttemptRecord, ...]
    screening_verdict: str = ""

    def check(self) -> None:
        """Assert the conservation law: each generated token is output (billed or refunded) or discarded, once."""
        counts = self.counts
        generated = sum(record.num_generated for record in self.attempts)
        accounted = counts.num_output + counts.num_discarded
        assert generated == accounted, f"{generated} tokens generated but {accounted} accounted for: {self}"
        parts = (counts.num_delivered, counts.num_withheld, counts.num_stop_overshoot, counts.num_late_step)
        assert min(parts) >= 0, f"negative count: {self}"
        shown = counts.num_delivered + counts.num_withheld
        assert shown <= counts.num_output, f"more delivered and withheld than output: {self}"
