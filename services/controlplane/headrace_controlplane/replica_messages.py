"""Replicas between the contract's messages and the registry's records. Decides nothing."""

from typing import cast

from headrace.v1 import fleet_pb2, response_pb2, worker_pb2
from headrace_controlplane.registry import Record, State, View
from headrace_kit.errors import HeadraceError

_PREFIX = "REPLICA_STATE_"
_ROLES = ("both", "prefill", "decode")


def to_record(replica: fleet_pb2.Replica) -> Record:
    """Raises InvalidRequest naming the field."""
    for name in ("id", "epoch", "endpoint"):
        if not getattr(replica.ref, name):
            raise HeadraceError("invalid_argument", "is missing", field=f"replica.ref.{name}")
    if replica.state not in worker_pb2.ReplicaState.values() or not replica.state:
        raise HeadraceError("invalid_argument", "is missing or unknown", field="replica.state")
    role = replica.role or "both"
    if role not in _ROLES:
        raise HeadraceError("invalid_argument", f"expected one of {', '.join(_ROLES)}", field="replica.role")
    return Record(
        id=replica.ref.id,
        epoch=replica.ref.epoch,
        endpoint=replica.ref.endpoint,
        pool=replica.pool,
        model=replica.model,
        revision=replica.revision,
        state=_state_name(replica.state),
        role=role,
        http=replica.http,
        card_digest=replica.card_digest,
        fingerprint=replica.fingerprint,
        domains=tuple(replica.domains),
        snapshot_version=replica.snapshot_version,
        progress=replica.progress,
        pid=replica.pid,
    )


def to_message(record: Record, lease_left_s: float) -> fleet_pb2.Replica:
    return fleet_pb2.Replica(
        ref=response_pb2.ReplicaRef(id=record.id, epoch=record.epoch, endpoint=record.endpoint),
        pool=record.pool,
        model=record.model,
        revision=record.revision,
        state=_PREFIX + record.state.upper(),
        role=record.role,
        http=record.http,
        card_digest=record.card_digest,
        fingerprint=record.fingerprint,
        domains=record.domains,
        snapshot_version=record.snapshot_version,
        progress=record.progress,
        pid=record.pid,
        lease_ms=round(lease_left_s * 1000),
    )


def to_set(view: View, registry_id: str) -> fleet_pb2.ReplicaSet:
    return fleet_pb2.ReplicaSet(
        revision=view.revision,
        full=view.full,
        replicas=[to_message(record, left_s) for record, left_s in view.records],
        removed=view.removed,
        registry_id=registry_id,
    )


def _state_name(value: int) -> State:
    return cast(State, worker_pb2.ReplicaState.Name(cast(worker_pb2.ReplicaState, value)).removeprefix(_PREFIX).lower())
