"""The ledger in Redis: plain data in, one script call, plain data out. Knows neither gRPC nor what is billed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace_policy.decide import Billed, Prices
from headrace_policy.limits import Limit
from headrace_policy.redis_link import RedisLink

RANKS = {"sweep": 1, "orphan": 2, "owner": 3}


@dataclass(frozen=True)
class Charge:
    """One limit that a reservation is charged to: its place, the units it holds, and its leak per millisecond."""

    name: str
    scope: str
    subject: str
    units: float
    rate: float


@dataclass(frozen=True)
class Terms:
    """What one reservation holds, and the prices that it will be settled at."""

    charges: tuple[Charge, ...] = ()
    prices: Prices = field(default_factory=Prices)


@dataclass(frozen=True)
class Admission:
    """One request: ``terms.charges[i]`` is what it needs of ``limits[i]``; ``message`` is kept for the sweep."""

    response_id: str
    limits: Sequence[Limit]
    terms: Terms
    message: bytes
    retry_of: str = ""


@dataclass(frozen=True)
class Verdict:
    """``state``: admitted, held (before), refused, settled (before) or retry_of (unknown or not failed).

    ``levels`` in the order of the limits, after this request if it was admitted; ``refusing`` indexes the limits.
    """

    state: str
    now_ms: int
    levels: tuple[float, ...]
    at_ms: int = 0
    terms: Terms = field(default_factory=Terms)
    wait_ms: float = 0.0
    refusing: int = -1


@dataclass(frozen=True)
class Held:
    """One running reservation, whole."""

    response_id: str
    terms: Terms
    message: bytes


@dataclass(frozen=True)
class Closing:
    """One settlement; ``at_ms`` and ``terms`` count only where Redis has lost its own."""

    response_id: str
    source: str
    kind: str
    billed: Billed
    terms: Terms
    at_ms: int
    message: bytes
    only_expired: bool = False


@dataclass(frozen=True)
class Closed:
    """``state``: applied, duplicate or corrected."""

    state: str
    now_ms: int
    cost: float


class RedisLedger:
    """Every method is one round trip and raises StoreAwayError."""

    def __init__(self, link: RedisLink, lease_ms: int) -> None:
        self._link, self.lease_ms = link, lease_ms

    async def admit(self, tenant: str, asked: Admission) -> Verdict:
        args: dict[str, object] = {
            "id": asked.response_id,
            "lease_ms": self.lease_ms,
            "limits": _limits(asked.limits, asked.terms.charges),
            "terms": _terms(tenant, asked.terms),
        }
        if asked.retry_of:
            args["retry_of"] = asked.retry_of
        places = [_key(tenant, charge.name, charge.scope, charge.subject) for charge in asked.terms.charges]
        reply = await self._run(tenant, places, "admit", args, asked.message)
        state, now_ms, detail, refusing = reply[0].decode(), int(reply[1]), reply[2].decode(), int(reply[3])
        levels = tuple(map(float, reply[4:]))
        if state == "refused":
            return Verdict(state, now_ms, levels, wait_ms=float(detail), refusing=refusing - 1)
        if state in ("admitted", "held"):
            at, _, terms = detail.partition(" ")
            return Verdict(state, now_ms, levels, at_ms=int(at), terms=_parse(terms))
        return Verdict(state, now_ms, levels)

    async def renew(self, tenant: str, items: Sequence[Held]) -> list[str]:
        """States in the order of the items: renewed, restored or settled."""
        rows = [{"id": item.response_id, "terms": _terms(tenant, item.terms)} for item in items]
        args = {"lease_ms": self.lease_ms, "items": rows}
        reply = await self._run(tenant, (), "renew", args, *(item.message for item in items))
        return [state.decode() for state in reply[1:]]

    async def settle(self, tenant: str, closing: Closing) -> Closed:
        billed = closing.billed
        args = {
            "id": closing.response_id,
            "rank": RANKS[closing.source],
            "kind": closing.kind,
            "requests": billed.num_requests,
            "uncached": billed.num_uncached,
            "cached": billed.num_cached,
            "output": billed.num_output,
            "at": closing.at_ms,
            "terms": _terms(tenant, closing.terms),
            "only_expired": closing.only_expired,
        }
        reply = await self._run(tenant, (), "settle", args, closing.message)
        return Closed(reply[0].decode(), int(reply[1]), float(reply[2]))

    async def due(self, tenant: str, count: int) -> list[bytes]:
        """Messages of reservations whose lease ran out, oldest first."""
        reply = await self._run(tenant, (), "due", {"count": count})
        return list(reply[1:])

    async def levels(self, tenant: str, limits: Sequence[Limit]) -> list[float]:
        """Levels now of limits with their subjects."""
        places = [_key(tenant, limit.name, limit.scope, limit.subject) for limit in limits]
        args = {"limits": [{"name": limit.name, "rate": repr(limit.rate)} for limit in limits]}
        reply = await self._run(tenant, places, "levels", args)
        return [float(level) for level in reply[4:]]

    async def _run(self, tenant: str, places: Sequence[str], operation: str, args: object, *messages: bytes) -> Any:
        keys = [*(fixed_key(tenant, name) for name in ("leases", "held", "done", "journal")), *places]
        return await self._link.run(keys, (operation, json.dumps(args, separators=(",", ":")), *messages))


def fixed_key(tenant: str, name: str) -> str:
    """The braces are the hash tag: a tenant's keys are on one node of a cluster."""
    return f"headrace:{{{tenant}}}:{name}"


def _key(tenant: str, name: str, scope: str, subject: str) -> str:
    return fixed_key(tenant, f"limit:{name}:{scope}:{subject}")


def _limits(limits: Sequence[Limit], charges: Sequence[Charge]) -> list[dict[str, object]]:
    return [
        {"name": limit.name, "capacity": limit.capacity, "rate": repr(limit.rate), "units": repr(charge.units)}
        for limit, charge in zip(limits, charges, strict=True)
    ]


def _terms(tenant: str, terms: Terms) -> str:
    """Numbers that may have a fraction are text, because the script's JSON writer keeps 14 digits."""
    charges = [
        {
            "key": _key(tenant, charge.name, charge.scope, charge.subject),
            "name": charge.name,
            "scope": charge.scope,
            "subject": charge.subject,
            "units": repr(charge.units),
            "rate": repr(charge.rate),
        }
        for charge in terms.charges
    ]
    price = [repr(amount) for amount in (terms.prices.prompt, terms.prices.cached, terms.prices.output)]
    return json.dumps({"charges": charges, "price": price}, separators=(",", ":"))


def _parse(text: str) -> Terms:
    raw = json.loads(text)
    charges = tuple(
        Charge(row["name"], row["scope"], row["subject"], float(row["units"]), float(row["rate"]))
        for row in raw["charges"]
    )
    return Terms(charges, Prices(*map(float, raw["price"])))
