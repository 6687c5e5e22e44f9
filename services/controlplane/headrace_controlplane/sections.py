"""What each audience of the snapshot gets to see, as deterministic bytes. Knows no stream and no store."""

from collections.abc import Mapping, Sequence

from headrace.v1 import policy_pb2, snapshot_pb2
from headrace_controlplane import revisions
from headrace_controlplane.beside import Beside
from headrace_controlplane.fleet.classes import SloClass
from headrace_controlplane.fleet.file import Fleet
from headrace_controlplane.fleet.prices import EVERY_OTHER
from headrace_controlplane.fleet.tenants import Tenant
from headrace_controlplane.keys import StoredKey

GATEWAY, POLICY, ROUTER, WORKER = "gateway", "policy", "router", "worker"
AUDIENCES = (GATEWAY, POLICY, ROUTER, WORKER)


def build(fleet: Fleet, beside: Beside) -> dict[str, bytes]:
    """Bytes by audience: equal input gives equal bytes. A worker needs the version alone, so its section is empty."""
    messages = {
        GATEWAY: _gateway(fleet, beside),
        POLICY: _policy(fleet, beside),
        ROUTER: _router(fleet, beside),
    }
    return {**{name: m.SerializeToString(deterministic=True) for name, m in messages.items()}, WORKER: b""}


def served_in(content: Mapping[str, bytes]) -> dict[str, tuple[str, bytes]]:
    """``Beside.served`` for the version after the one with these sections."""
    section = snapshot_pb2.GatewaySection.FromString(content.get(GATEWAY, b""))
    return {model.name: (model.revision, model.card_digest) for model in section.models if model.card_digest}


def _gateway(fleet: Fleet, beside: Beside) -> snapshot_pb2.GatewaySection:
    return snapshot_pb2.GatewaySection(
        models=[_model(fleet, name, beside) for name in fleet.models],
        classes=[_slo_class(name, slo) for name, slo in fleet.classes.items()],
        salt_secret=beside.vault.salt_secret,
        cors_origins=fleet.safety.cors_origins,
    )


def _model(fleet: Fleet, name: str, beside: Beside) -> snapshot_pb2.ModelEntry:
    model = fleet.models[name]
    revision, card = revisions.served(fleet, name, beside)
    limits = [pool.max_sequence_tokens or 0 for pool in fleet.pools.values() if pool.model == name]
    return snapshot_pb2.ModelEntry(
        name=name,
        aliases=model.aliases,
        revision=revision,
        card_digest=card,
        default_max_output_tokens=model.default_max_output_tokens or 0,
        # A pool without a limit takes what the card says, and so does the model then.
        max_sequence_tokens=max(limits) if limits and all(limits) else 0,
        created_at_s=beside.models_added.get(name, 0),
    )


def _slo_class(name: str, slo: SloClass) -> snapshot_pb2.SloClass:
    return snapshot_pb2.SloClass(
        name=name,
        ttft_ms=slo.ttft_ms,
        inter_token_ms=slo.inter_token_ms,
        max_queue_ms=slo.max_queue_ms,
        delivery_reserve_ms=slo.delivery_reserve_ms,
        total_ms=slo.total_ms,
        statistical=slo.statistical,
        target=slo.target,
    )


def _policy(fleet: Fleet, beside: Beside) -> snapshot_pb2.PolicySection:
    return snapshot_pb2.PolicySection(
        keys=[_key(fleet, key) for key in beside.keys],
        tenants=[_tenant(fleet, name, tenant) for name, tenant in fleet.tenants.items()],
        key_secret=beside.vault.key_secret,
        prices=[
            snapshot_pb2.ModelPrice(
                model="" if name == EVERY_OTHER else name,
                price=policy_pb2.Price(
                    prompt_per_million=price.prompt_per_million,
                    cached_per_million=price.cached_per_million,
                    output_per_million=price.output_per_million,
                ),
            )
            for name, price in fleet.prices.items()
        ],
        rules=[
            snapshot_pb2.SafetyRule(
                name=name,
                detector=rule.detector,
                side=rule.side,
                action=rule.action,
                values=rule.values,
                fail_open=rule.fail_open,
                guard_model=rule.guard_model,
                replacement=rule.replacement,
            )
            for name, rule in fleet.safety.rules.items()
        ],
        default_slo_class=fleet.default_class,
    )


def _with_aliases(fleet: Fleet, names: Sequence[str]) -> list[str]:
    """The names under which requests may ask for these models: policy sees a request's own word for a model.

    A model that the fleet no longer has stays, since an empty list would allow every model.
    """
    aliases = (fleet.models[name].aliases if name in fleet.models else () for name in names)
    return [*names, *(alias for some in aliases for alias in some)]


def _key(fleet: Fleet, key: StoredKey) -> snapshot_pb2.ApiKey:
    return snapshot_pb2.ApiKey(
        key_id=key.key_id,
        hash=key.hash,
        tenant=key.tenant,
        project=key.project,
        models=_with_aliases(fleet, key.models),
        expires_at_s=key.expires_at_s,
        revoked=key.revoked,
        slo_class=key.slo_class,
        scopes=key.scopes,
    )


def _tenant(fleet: Fleet, name: str, tenant: Tenant) -> snapshot_pb2.Tenant:
    allowance = tenant.local_allowance
    return snapshot_pb2.Tenant(
        id=name,
        weight=tenant.weight,
        sharing_group=tenant.sharing_group,
        slo_class=tenant.slo_class or "",
        models=_with_aliases(fleet, tenant.models),
        limits=[
            snapshot_pb2.Limit(name=limit.name, capacity=limit.capacity, scope=limit.scope, subject=limit.subject)
            for limit in tenant.limits
        ],
        local_allowance=snapshot_pb2.LocalAllowance(rpm=allowance.rpm, tpm=allowance.tpm) if allowance else None,
        rules=tenant.rules,
    )


def _router(fleet: Fleet, beside: Beside) -> snapshot_pb2.RouterSection:
    return snapshot_pb2.RouterSection(
        pools=[
            snapshot_pb2.Pool(
                name=name,
                model=pool.model,
                revision=fleet.revision_of(name),
                role=pool.role,
                hold_ms=round(pool.hold_s * 1000),
                max_held=pool.max_held,
                min_replicas=pool.min,
                max_replicas=pool.most,
                classes=pool.classes,
                max_sequence_tokens=pool.max_sequence_tokens or 0,
            )
            for name, pool in fleet.pools.items()
        ],
        classes=[_slo_class(name, slo) for name, slo in fleet.classes.items()],
        models=revisions.routed(fleet, beside),
    )
