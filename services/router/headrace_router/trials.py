"""Who is served by a revision on trial, and what became of the attempts of models that have one. Pure.

A session, or a response without one, falls to the revision on trial by its hash: every router finds the same, a larger
share keeps those it had, and another revision tries others. Counts only grow, so a lost report costs nothing. Knows no
replica; times in seconds.
"""

from collections import OrderedDict
from collections.abc import Set
from dataclasses import astuple, dataclass
from hashlib import blake2b

from headrace_router.deadlines import Budget

# Faults that are not a replica's; whatever else fails counts, for it is compared with the revision beside it.
_OTHERS_FAULTS = frozenset({"policy_lost", "gateway_lost", "prefill_lost", "kv_expired", "replica_draining"})
_KEPT = 100_000
_SCALE = 1 << 64


@dataclass(frozen=True)
class Canary:
    """A revision on trial; ``trial`` names the trial."""

    revision: str
    share: float
    trial: int


@dataclass(frozen=True)
class Revisions:
    """Of one model: those that may serve for one another, and the one on trial."""

    alike: Set[str]
    canary: Canary | None = None

    def allowed(self, asked: str) -> Set[str]:
        """Revisions that may serve what was prepared for ``asked``; empty: any."""
        return self.alike if not asked or asked in self.alike else frozenset({asked})

    def on_trial(self, model: str, asked: str, key: str) -> str:
        """The revision on trial if this one falls to it, else nothing."""
        canary = self.canary
        if canary is None or canary.share <= 0 or (asked and asked not in self.alike):
            return ""
        drawn = blake2b(f"{model}\0{canary.revision}\0{key}".encode(), digest_size=8).digest()
        return canary.revision if int.from_bytes(drawn, "big") < canary.share * _SCALE else ""


@dataclass(frozen=True)
class Arm:
    """Which count an attempt belongs to."""

    model: str
    revision: str
    trial: int


@dataclass(frozen=True)
class Ending:
    """How an attempt ended; a time is 0 where there was none."""

    outcome: str
    reason: str = ""
    ttft_s: float = 0.0
    inter_token_s: float = 0.0


@dataclass
class Count:
    """Totals of one arm."""

    num_ended: int = 0
    num_failed: int = 0
    num_ttft_met: int = 0
    num_ttft_missed: int = 0
    num_inter_token_met: int = 0
    num_inter_token_missed: int = 0

    def add(self, ending: Ending, budget: Budget) -> None:
        failed = ending.outcome == "lost" or (ending.outcome == "failed" and ending.reason not in _OTHERS_FAULTS)
        self.num_failed += failed
        self.num_ended += failed or ending.outcome in ("completed", "incomplete")
        if ending.ttft_s > 0:
            late = ending.ttft_s > budget.ttft_s
            self.num_ttft_missed += late
            self.num_ttft_met += not late
        if ending.inter_token_s > 0 and budget.inter_token_s > 0:
            slow = ending.inter_token_s > budget.inter_token_s
            self.num_inter_token_missed += slow
            self.num_inter_token_met += not slow


class Outcomes:
    """Totals by arm of the newest trial of each model; an attempt counts once, whatever became of its replica."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[Arm, Budget]] = OrderedDict()
        self._counts: dict[Arm, Count] = {}

    def sent(self, decision_id: str, arm: Arm, budget: Budget) -> None:
        self._open[decision_id] = (arm, budget)
        if len(self._open) > _KEPT:
            self._open.popitem(last=False)

    def ended(self, decision_id: str, ending: Ending) -> None:
        arm, budget = self._open.pop(decision_id, (None, None))
        if arm is not None and budget is not None:
            self._count(arm).add(ending, budget)

    def turned_away(self, arm: Arm) -> None:
        """It was to serve a request, and every replica of it had its breaker open."""
        count = self._count(arm)
        count.num_ended += 1
        count.num_failed += 1

    def rows(self) -> list[tuple[Arm, tuple[int, ...]]]:
        return [(arm, astuple(count)) for arm, count in self._counts.items()]

    def _count(self, arm: Arm) -> Count:
        if arm not in self._counts:
            self._counts = {
                each: count
                for each, count in self._counts.items()
                if each.model != arm.model or each.trial >= arm.trial
            }
        return self._counts.setdefault(arm, Count())
