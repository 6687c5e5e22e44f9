"""The ledger in Redis: plain data in, one script call, plain data out. Knows neither gRPC nor what is billed."""

import json
from collections.abc import Sequence
from typing import Any

from headrace_policy.decide import Prices
from headrace_policy.ledger import RANKS, Admission, Charge, Closed, Closing, Found, Held, Terms, Verdict
from headrace_policy.limits import Limit
from headrace_policy.redis_link import RedisLink


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
        call = _call(tenant, places, "admit", args, asked.message)
        reply = await self._link.run(*call, limit_s=self._link.decide_s)
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
        return Closed(reply[0].decode(), int(reply[1]), float(reply[2]), reply[3].decode())

    async def tour(self, tenant: str, count: int) -> Found:
        """What waits for attention at one tenant; at most ``count`` leases, oldest first."""
        reply = await self._run(tenant, (), "tour", {"count": count})
        return Found(num_rows=int(reply[1]), expired=tuple(reply[2:]))

    async def num_leases(self, tenant: str) -> int:
        """Reservations of one tenant that are out."""
        found = await self._link.call(lambda: self._link.client.zcard(fixed_key(tenant, "leases")))
        return int(found)

    async def rows(self, tenant: str, count: int) -> list[tuple[str, dict[bytes, bytes]]]:
        """The oldest rows of the journal stream: id and fields s (settlement), c (cost), k (1 = correction)."""
        reply = await self._link.call(lambda: self._link.client.xrange(fixed_key(tenant, "journal"), count=count))
        return [(row_id.decode(), fields) for row_id, fields in reply]

    async def drop_rows(self, tenant: str, row_ids: Sequence[str]) -> None:
        """Forgets rows that are safe elsewhere."""
        await self._link.call(lambda: self._link.client.xdel(fixed_key(tenant, "journal"), *row_ids))

    async def levels(self, tenant: str, limits: Sequence[Limit]) -> list[float]:
        """Levels now of limits with their subjects."""
        places = [_key(tenant, limit.name, limit.scope, limit.subject) for limit in limits]
        args = {"limits": [{"name": limit.name, "rate": repr(limit.rate)} for limit in limits]}
        reply = await self._run(tenant, places, "levels", args)
        return [float(level) for level in reply[4:]]

    async def _run(self, tenant: str, places: Sequence[str], operation: str, args: object, *messages: bytes) -> Any:
        return await self._link.run(*_call(tenant, places, operation, args, *messages))


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


def _call(
    tenant: str, places: Sequence[str], operation: str, args: object, *messages: bytes
) -> tuple[list[str], tuple[str | bytes, ...]]:
    """Keys and arguments of the script."""
    keys = [*(fixed_key(tenant, name) for name in ("leases", "held", "done", "journal")), *places]
    return keys, (operation, json.dumps(args, separators=(",", ":")), *messages)
