"""Limits as leaky buckets: what applies, what fits, when it would, what is given back. The twin of ledger.lua.

A level is in units and falls steadily by capacity per period, so no window exists that could be crossed (decision 7),
and a changed limit keeps what was used. A reservation raises every level it touches, or none. What a settlement gives
back shrinks as the level falls: units that have leaked cannot be given back a second time, so what was really used in
any span of time never exceeds capacity + rate x span, however long responses run.
Knows no Redis, no tenant and no clock: times are milliseconds and arguments.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MINUTE_MS = 60_000
DAY_MS = 86_400_000
PERIOD_MS: Mapping[str, int] = {
    "rpm": MINUTE_MS,
    "tpm": MINUTE_MS,
    "input_tpm": MINUTE_MS,
    "output_tpm": MINUTE_MS,
    "concurrency": 0,  # a count of running responses: it does not leak
    "tokens_per_day": DAY_MS,
    "spend_per_day": DAY_MS,
}
REASONS: Mapping[str, str] = {
    "rpm": "rpm",
    "tpm": "tpm",
    "input_tpm": "tpm",
    "output_tpm": "tpm",
    "concurrency": "concurrency",
    "tokens_per_day": "tokens_per_day",
    "spend_per_day": "spend",
}
SCOPES = ("tenant", "project", "key", "model")
SLACK = 1e-9
"""Relative rounding error that admission forgives."""
CONCURRENCY_WAIT_MS = 1000.0
"""Nobody knows when a running response ends; this is what its refusal suggests."""
NEVER = float("inf")


@dataclass(frozen=True)
class Limit:
    """One limit of a tenant or key; ``subject`` empty = each project, key or model has its own."""

    name: str
    capacity: float
    scope: str
    subject: str = ""

    @property
    def rate(self) -> float:
        """Units that leak per millisecond."""
        period = PERIOD_MS[self.name]
        return self.capacity / period if period else 0.0


@dataclass(frozen=True)
class Caller:
    """Whose request it is: what scopes are resolved with."""

    tenant: str
    project: str
    key_id: str
    model: str

    def subject(self, scope: str) -> str:
        return {"tenant": "", "project": self.project, "key": self.key_id, "model": self.model}[scope]


def applicable(limits: Iterable[Limit], caller: Caller) -> list[Limit]:
    """The limits of one request, each with its subject: at most one per name and scope, one that names it wins."""
    chosen: dict[tuple[str, str], Limit] = {}
    for limit in limits:
        subject = caller.subject(limit.scope)
        if (limit.scope != "tenant" and not subject) or limit.subject not in ("", subject):
            continue
        place = (limit.name, limit.scope)
        if limit.subject or place not in chosen:
            chosen[place] = Limit(limit.name, limit.capacity, limit.scope, subject)
    return list(chosen.values())


def leaked(level: float, rate: float, elapsed_ms: float) -> float:
    """A level after time has passed; a clock that ran backwards leaks nothing."""
    return max(0.0, level - rate * max(0.0, elapsed_ms))


def wait_ms(limit: Limit, level: float, units: float) -> float:
    """0 if ``units`` fit now, else milliseconds until they would, NEVER if they are more than the whole limit."""
    slack = SLACK * max(1.0, limit.capacity)
    if level + units <= limit.capacity + slack:
        return 0.0
    if units > limit.capacity + slack:
        return NEVER
    if limit.rate == 0.0:
        return CONCURRENCY_WAIT_MS
    return (level + units - limit.capacity) / limit.rate


def settled_level(level: float, rate: float, correction: float, elapsed_ms: float) -> float:
    """A level after ``correction`` units (actual - reserved) of a charge made ``elapsed_ms`` ago."""
    if correction < 0:
        correction = min(0.0, correction + rate * max(0.0, elapsed_ms))
    return max(0.0, level + correction)
