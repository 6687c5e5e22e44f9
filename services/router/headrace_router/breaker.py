"""One circuit breaker per replica (decision 11). Pure: clock and jitter are arguments. Knows no replica.

    closed --NUM_FAULTS in a row--> open --after the back-off--> half open: one probe at a time
    half open --success--> closed;  half open --fault--> open, with twice the back-off

Only faults of the replica count. What its caller did wrong (4xx) and a full waiting room (busy) say nothing.
"""

from dataclasses import dataclass
from typing import Literal

NUM_FAULTS = 5
BASE_S, CAP_S = 1.0, 30.0
# A probe whose outcome nobody reported does not block the next one for ever.
PROBE_S = 60.0

Verdict = Literal["success", "fault", "neutral"]
_NEUTRAL_FAILURES = frozenset(
    {
        *("deadline", "policy_lost", "gateway_lost", "prefill_lost", "replica_draining"),
        *("decode_error", "no_valid_token", "kv_expired"),
    }
)


def judge(outcome: str, reason: str) -> Verdict:
    """What an attempt's outcome says about its replica."""
    if outcome in ("completed", "incomplete"):
        return "success"
    if outcome == "lost":
        return "fault"
    if outcome == "failed" and reason not in _NEUTRAL_FAILURES:
        return "fault"
    return "neutral"


@dataclass
class Breaker:
    """State of one replica's breaker; times in seconds on one monotonic clock."""

    num_faults: int = 0
    num_openings: int = 0
    open_until: float | None = None
    probe_until: float = 0.0

    def admits(self, now: float) -> bool:
        """Whether a request may go there now."""
        if self.open_until is None:
            return True
        return now >= self.open_until and now >= self.probe_until

    def retry_after_s(self, now: float) -> float:
        """Time until it may admit again, as far as is known."""
        return 0.0 if self.open_until is None else max(0.0, self.open_until - now, self.probe_until - now)

    def on_pick(self, now: float) -> None:
        """A request goes there; when open, it is the probe."""
        if self.open_until is not None:
            self.probe_until = now + PROBE_S

    def on_outcome(self, verdict: Verdict, now: float, jitter: float) -> None:
        """``jitter`` in [0, 1] spreads the back-off from half to all of it."""
        if verdict == "success":
            self.num_faults, self.num_openings, self.open_until, self.probe_until = 0, 0, None, 0.0
        elif verdict == "neutral":
            self.probe_until = 0.0
        else:
            self._fault(now, jitter)

    def _fault(self, now: float, jitter: float) -> None:
        self.num_faults += 1
        was_probe = self.open_until is not None and now >= self.open_until
        if self.open_until is None and self.num_faults < NUM_FAULTS:
            return
        if self.open_until is None or was_probe:
            length_s = min(CAP_S, BASE_S * 2 ** min(self.num_openings, 10)) * (0.5 + 0.5 * jitter)
            self.open_until, self.probe_until = now + length_s, 0.0
            self.num_openings += 1
