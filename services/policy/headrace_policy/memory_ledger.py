"""The ledger in memory: the slow twin of ledger.lua, for tests and the simulator. The clock is an argument.

Says everything that the script does, with the formulas of limits.py; keeps outcomes for ever. Knows no Redis.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_policy import limits as buckets
from headrace_policy.decide import Billed
from headrace_policy.ledger import RANKS, Admission, Charge, Closed, Closing, Held, Terms, Verdict
from headrace_policy.limits import Limit

Place = tuple[str, str, str]


@dataclass
class Level:
    """Units as they were counted at a time, and how many leak per millisecond."""

    units: float
    at_ms: int
    rate: float


@dataclass
class Running:
    """One open reservation."""

    at_ms: int
    terms: Terms
    message: bytes
    expires_ms: int


@dataclass
class Outcome:
    """How an id was settled."""

    rank: int
    kind: str
    billed: Billed
    cost: float


class MemoryLedger:
    """One tenant."""

    def __init__(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self._levels: dict[Place, Level] = {}
        self._streams: dict[Place, set[str]] = {}
        self._running: dict[str, Running] = {}
        self._outcomes: dict[str, Outcome] = {}

    def admit(self, asked: Admission, now_ms: int) -> Verdict:
        levels = [self.level(limit, now_ms) for limit in asked.limits]
        if asked.response_id in self._outcomes:
            return Verdict("settled", now_ms, tuple(levels))
        if running := self._running.get(asked.response_id):
            return Verdict("held", now_ms, tuple(levels), at_ms=running.at_ms, terms=running.terms)
        if asked.retry_of:
            replaced = self._outcomes.get(asked.retry_of)
            if replaced is None or replaced.kind != "failed":
                return Verdict("retry_of", now_ms, tuple(levels))
        waits = [
            buckets.wait_ms(limit, level, charge.units)
            for limit, level, charge in zip(asked.limits, levels, asked.terms.charges, strict=True)
        ]
        longest = max(waits, default=0.0)
        if longest > 0:
            return Verdict("refused", now_ms, tuple(levels), wait_ms=longest, refusing=waits.index(longest))
        for charge, limit in zip(asked.terms.charges, asked.limits, strict=True):
            self._take(charge, asked.response_id, limit.rate, now_ms)
        self._hold(asked.response_id, asked.terms, asked.message, now_ms)
        after = tuple(level + charge.units for level, charge in zip(levels, asked.terms.charges, strict=True))
        return Verdict("admitted", now_ms, after, at_ms=now_ms, terms=asked.terms)

    def renew(self, items: Sequence[Held], now_ms: int) -> list[str]:
        return [self._renew(item, now_ms) for item in items]

    def settle(self, closing: Closing, now_ms: int) -> Closed:
        known, running = self._outcomes.get(closing.response_id), self._running.get(closing.response_id)
        rank = RANKS[closing.source]
        if known and known.rank >= rank:
            return Closed("duplicate", now_ms, known.cost)
        if closing.only_expired and (running is None or running.expires_ms > now_ms):
            return Closed("duplicate", now_ms, 0.0)
        terms, since = (running.terms, running.at_ms) if running else (closing.terms, closing.at_ms)
        for charge in terms.charges:
            place = (charge.name, charge.scope, charge.subject)
            if charge.name == "concurrency":
                self._streams.get(place, set()).discard(closing.response_id)
                continue
            before = charge.units if running else known.billed.units(charge.name, terms.prices) if known else 0.0
            correction = closing.billed.units(charge.name, terms.prices) - before
            self._correct(charge, correction, since, now_ms)
        self._running.pop(closing.response_id, None)
        billed, cost = closing.billed, _cost(closing.billed, terms)
        self._outcomes[closing.response_id] = Outcome(rank, closing.kind, billed, cost)
        return Closed("corrected" if known else "applied", now_ms, cost)

    def due(self, now_ms: int) -> list[bytes]:
        """Messages of reservations whose lease ran out, oldest first."""
        expired = sorted((r.expires_ms, name) for name, r in self._running.items() if r.expires_ms <= now_ms)
        return [self._running[name].message for _, name in expired]

    def level(self, limit: Limit, now_ms: int) -> float:
        """Units that count against a limit with its subject now."""
        place = (limit.name, limit.scope, limit.subject)
        if limit.name == "concurrency":
            return float(len(self._streams.get(place, ())))
        level = self._levels.get(place)
        return buckets.leaked(level.units, limit.rate, now_ms - level.at_ms) if level else 0.0

    def forget(self) -> None:
        """What an emptied server does."""
        self._levels.clear()
        self._streams.clear()
        self._running.clear()
        self._outcomes.clear()

    def _renew(self, item: Held, now_ms: int) -> str:
        if item.response_id in self._outcomes:
            return "settled"
        if running := self._running.get(item.response_id):
            running.expires_ms = now_ms + self.lease_ms
            return "renewed"
        for charge in item.terms.charges:
            self._take(charge, item.response_id, charge.rate, now_ms)
        self._hold(item.response_id, item.terms, item.message, now_ms)
        return "restored"

    def _hold(self, response_id: str, terms: Terms, message: bytes, now_ms: int) -> None:
        self._running[response_id] = Running(now_ms, terms, message, now_ms + self.lease_ms)

    def _take(self, charge: Charge, response_id: str, rate: float, now_ms: int) -> None:
        place = (charge.name, charge.scope, charge.subject)
        if charge.name == "concurrency":
            self._streams.setdefault(place, set()).add(response_id)
            return
        old = self._levels.get(place)
        units = buckets.leaked(old.units, rate, now_ms - old.at_ms) if old else 0.0
        self._write(place, units + charge.units, rate, now_ms)

    def _correct(self, charge: Charge, correction: float, since_ms: int, now_ms: int) -> None:
        place = (charge.name, charge.scope, charge.subject)
        old = self._levels.get(place) or Level(0.0, now_ms, 0.0)
        units, rate = buckets.leaked(old.units, old.rate, now_ms - old.at_ms), old.rate or charge.rate
        after = buckets.settled_level(units, rate, correction, now_ms - since_ms)
        if after != units:
            self._write(place, after, rate, now_ms)

    def _write(self, place: Place, units: float, rate: float, now_ms: int) -> None:
        if units > 0:
            self._levels[place] = Level(units, now_ms, rate)
        else:
            self._levels.pop(place, None)


def _cost(billed: Billed, terms: Terms) -> float:
    return terms.prices.cost(billed.num_uncached, billed.num_cached, billed.num_output)
