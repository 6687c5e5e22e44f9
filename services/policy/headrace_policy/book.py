"""The policy section in force: keys, tenants, prices. ``apply`` replaces all of it or raises ValueError."""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.v1 import policy_pb2, snapshot_pb2
from headrace_policy import guard
from headrace_policy.decide import Prices
from headrace_policy.keys import Key
from headrace_policy.limits import PERIOD_MS, SCOPES, Caller, Limit, applicable
from headrace_policy.screening.rule import Definition, Rule
from headrace_policy.screening.ruleset import Ruleset, choose, compile_all


@dataclass(frozen=True)
class Tenant:
    """One tenant; an allowance of None means none."""

    name: str
    weight: float
    sharing_group: str
    slo_class: str
    models: frozenset[str]
    limits: tuple[Limit, ...]
    allowance: tuple[Limit, ...] | None
    rules: Ruleset


@dataclass(frozen=True)
class Book:
    """One immutable section."""

    secret: bytes = b""
    keys: Mapping[str, Key] = field(default_factory=dict)
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    prices: Mapping[str, Prices] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    default_slo_class: str = ""

    def price(self, model: str) -> Prices:
        return self.prices.get(model) or self.prices.get("") or Prices()

    def rules_of(self, tenant: str) -> Ruleset | None:
        """None if there is no such tenant."""
        row = self.tenants.get(tenant)
        return row.rules if row else None

    def limits(self, caller: Caller) -> list[Limit]:
        """What applies to a request; a key's own limits come before its tenant's."""
        tenant, key = self.tenants.get(caller.tenant), self.keys.get(caller.key_id)
        own = key.limits if key is not None and key.tenant == caller.tenant else ()
        return applicable((*(tenant.limits if tenant else ()), *own), caller)


class Shelf:
    """Holds the book in force."""

    def __init__(self) -> None:
        self.book = Book()

    def apply(self, section: snapshot_pb2.PolicySection) -> None:
        self.book = read(section, self.book)

    def rules_of(self, tenant: str) -> Ruleset | None:
        """As the book in force has them; None if there is no such tenant."""
        return self.book.rules_of(tenant)


def read(section: snapshot_pb2.PolicySection, before: Book | None = None) -> Book:
    """Raises ValueError naming what is wrong; rules that ``before`` has are not compiled again."""
    if not section.key_secret:
        raise ValueError("the section has no key_secret")
    known = {rule.definition: rule for rule in before.rules.values()} if before else {}
    rules = compile_all(map(_definition, section.rules), known)
    tenants = {row.id: _tenant(row, rules) for row in section.tenants}
    keys = {row.key_id: _key(row) for row in section.keys}
    if len(tenants) != len(section.tenants) or len(keys) != len(section.keys):
        raise ValueError("a tenant or a key is there twice")
    tenants[guard.TENANT], keys[guard.KEY_ID] = _guard_tenant(), _guard_key(section.key_secret)
    # Keys are kept beside the fleet file: one may outlive its tenant, and is void then.
    keys = {name: key for name, key in keys.items() if key.tenant in tenants}
    prices = {row.model: _prices(row.price) for row in section.prices}
    return Book(bytes(section.key_secret), keys, tenants, prices, rules, section.default_slo_class)


def _guard_tenant() -> Tenant:
    """Who the guard's own questions are asked as: without limits, and with screening off."""
    return Tenant(guard.TENANT, 1.0, "", "", frozenset(), (), None, Ruleset())


def _guard_key(secret: bytes) -> Key:
    digest = hmac.digest(secret, guard.credential(secret).encode(), "sha256")
    return Key(guard.KEY_ID, digest, guard.TENANT, "", frozenset(), 0, False, "", (), ())


def _definition(row: snapshot_pb2.SafetyRule) -> Definition:
    return Definition(
        name=row.name,
        detector=row.detector,
        side=row.side or "both",
        action=row.action or "block",
        values=tuple(row.values),
        fail_open=row.fail_open,
        guard_model=row.guard_model,
        replacement=row.replacement,
    )


def _tenant(row: snapshot_pb2.Tenant, rules: Mapping[str, Rule]) -> Tenant:
    if not row.id or set(row.id) & set("{}"):
        raise ValueError(f'"{row.id}" cannot be the name of a tenant')
    allowance = None
    if row.HasField("local_allowance"):
        local = row.local_allowance
        allowance = (Limit("rpm", local.rpm, "tenant"), Limit("tpm", local.tpm, "tenant"))
    return Tenant(
        name=row.id,
        weight=row.weight or 1.0,
        sharing_group=row.sharing_group,
        slo_class=row.slo_class,
        models=frozenset(row.models),
        limits=_limits(row.limits),
        allowance=allowance,
        rules=choose(rules, row.rules),
    )


def _key(row: snapshot_pb2.ApiKey) -> Key:
    if not row.key_id or len(row.hash) != 32:
        raise ValueError(f'key "{row.key_id}" needs an id and a hash of 32 bytes')
    own = [Limit(limit.name, limit.capacity, limit.scope or "key", row.key_id) for limit in _limits(row.limits)]
    return Key(
        key_id=row.key_id,
        hash=bytes(row.hash),
        tenant=row.tenant,
        project=row.project,
        models=frozenset(row.models),
        expires_at_s=row.expires_at_s,
        revoked=row.revoked,
        slo_class=row.slo_class,
        scopes=tuple(row.scopes),
        limits=tuple(Limit(limit.name, limit.capacity, "key", row.key_id) for limit in own),
    )


def _limits(rows: Iterable[snapshot_pb2.Limit]) -> tuple[Limit, ...]:
    for row in rows:
        scope = row.scope or "tenant"
        if row.name not in PERIOD_MS or scope not in SCOPES or not row.capacity >= 0:
            raise ValueError(f'limit "{row.name}" of scope "{scope}" with capacity {row.capacity} is not known')
    return tuple(Limit(row.name, row.capacity, row.scope or "tenant", row.subject) for row in rows)


def _prices(price: policy_pb2.Price) -> Prices:
    return Prices(price.prompt_per_million, price.cached_per_million, price.output_per_million)
