"""``headrace.v1.Admin``: what operators do. Each call needs the admin key and leaves a line in the log."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

from headrace.v1 import fleet_pb2, fleet_pb2_grpc
from headrace_controlplane import keys
from headrace_controlplane.accountant import Accountant
from headrace_controlplane.admin_gate import AdminGate
from headrace_controlplane.auditor import Auditor
from headrace_controlplane.fleet import diff
from headrace_controlplane.fleet.file import parse
from headrace_controlplane.fleet.problems import InvalidFleet
from headrace_controlplane.fleet_servicer import FleetState
from headrace_controlplane.foreman import Foreman
from headrace_controlplane.keys import StoredKey
from headrace_controlplane.metrics_of_all import MetricsOfAll
from headrace_controlplane.questions import Questions, unknown_replica
from headrace_controlplane.scale_messages import pool_scales
from headrace_controlplane.scaler import Scaler
from headrace_controlplane.trace_store import TraceStore
from headrace_kit.errors import HeadraceError

log = logging.getLogger(__name__)
_DEFAULT_HISTORY, _MAX_HISTORY = 50, 1000
_MAX_EXPIRY_S = 100 * 365 * 24 * 3600
_DEFAULT_DRAIN_MS, _MAX_DRAIN_MS = 30_000, 3_600_000


@dataclass(frozen=True)
class Office:
    """Those who carry out what operators want."""

    state: FleetState
    gate: AdminGate
    questions: Questions
    foreman: Foreman
    accountant: Accountant
    auditor: Auditor
    metrics: MetricsOfAll
    traces: TraceStore
    scaler: Scaler


class AdminServicer(fleet_pb2_grpc.AdminServicer):
    def __init__(self, office: Office) -> None:
        self._office, self._state, self._ledger = office, office.state, office.state.ledger

    async def Apply(self, request: Any, context: Any) -> fleet_pb2.ApplyResponse:
        self._enter(context, "Apply")
        try:
            changed = self._ledger.apply(request.fleet_yaml, request.comment[:1000], request.expected_version)
        except InvalidFleet as error:
            return fleet_pb2.ApplyResponse(version=self._ledger.version, problems=_problems(error))
        return fleet_pb2.ApplyResponse(version=self._ledger.version, changed=changed)

    async def Diff(self, request: Any, context: Any) -> fleet_pb2.DiffResponse:
        self._enter(context, "Diff")
        try:
            new = parse(request.fleet_yaml)
        except InvalidFleet as error:
            return fleet_pb2.DiffResponse(problems=_problems(error))
        current = self._ledger.current
        again = [f"models.{row.model}.canary: halted -> on trial again" for row in self._ledger.trials.halted(new)]
        return fleet_pb2.DiffResponse(changes=diff.changes(current.fleet if current else None, new) + again)

    async def History(self, request: Any, context: Any) -> fleet_pb2.HistoryResponse:
        self._enter(context, "History")
        rows = self._ledger.history(min(request.limit or _DEFAULT_HISTORY, _MAX_HISTORY))
        entries = [
            fleet_pb2.HistoryEntry(
                version=row.version, created_at_s=row.created_at_s, comment=row.comment, kind=row.kind, hash=row.hash
            )
            for row in rows
        ]
        return fleet_pb2.HistoryResponse(entries=entries)

    async def Rollback(self, request: Any, context: Any) -> fleet_pb2.ApplyResponse:
        self._enter(context, "Rollback")
        try:
            changed = self._ledger.rollback(request.version)
        except InvalidFleet as error:  # a file of an earlier release that this one refuses
            return fleet_pb2.ApplyResponse(version=self._ledger.version, problems=_problems(error))
        return fleet_pb2.ApplyResponse(version=self._ledger.version, changed=changed)

    async def Show(self, request: Any, context: Any) -> fleet_pb2.ShowResponse:
        self._enter(context, "Show")
        version, text = self._ledger.file_of(request.version)
        answer, current = fleet_pb2.ShowResponse(version=version, fleet_yaml=text), self._ledger.current
        if version == self._ledger.version and current is not None:
            answer.canaries.extend(self._state.referee.statuses())
            answer.scales.extend(pool_scales(current.fleet.pools, self._office.scaler))
        return answer

    async def ListSubscribers(self, request: Any, context: Any) -> fleet_pb2.ListSubscribersResponse:
        self._enter(context, "ListSubscribers")
        return fleet_pb2.ListSubscribersResponse(
            subscribers=[
                fleet_pb2.Subscriber(
                    service=s.service,
                    instance=s.instance,
                    version=s.version,
                    nacked=s.nacked,
                    error=s.error,
                    endpoint=s.endpoint,
                )
                for s in self._state.subscribers
            ]
        )

    async def ListReplicas(self, request: Any, context: Any) -> fleet_pb2.ReplicaSet:
        self._enter(context, "ListReplicas")
        message = self._state.roster.message()
        message.replicas.extend(self._office.foreman.unregistered())
        return message

    async def CreateKey(self, request: Any, context: Any) -> fleet_pb2.CreateKeyResponse:
        self._enter(context, "CreateKey")
        wanted = self._wanted_key(request)
        key, whole = self._ledger.create_key(wanted)
        return fleet_pb2.CreateKeyResponse(key_id=key.key_id, key=whole, version=self._ledger.version)

    async def ListKeys(self, request: Any, context: Any) -> fleet_pb2.ListKeysResponse:
        self._enter(context, "ListKeys")
        return fleet_pb2.ListKeysResponse(keys=[_key(key) for key in self._ledger.list_keys(request.tenant)])

    async def RevokeKey(self, request: Any, context: Any) -> fleet_pb2.RevokeKeyResponse:
        self._enter(context, "RevokeKey")
        self._ledger.revoke_key(request.key_id)
        return fleet_pb2.RevokeKeyResponse(version=self._ledger.version)

    async def GetTenantQuota(self, request: Any, context: Any) -> Any:
        self._enter(context, "GetTenantQuota")
        return await self._office.questions.quota(request)

    async def QueryUsage(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self._enter(context, "QueryUsage")
        async for row in self._office.questions.usage(request):
            yield row

    async def ExplainRoute(self, request: Any, context: Any) -> Any:
        self._enter(context, "ExplainRoute")
        return await self._office.questions.explanation(request)

    async def DrainReplica(self, request: Any, context: Any) -> Any:
        """Drained is also stopped, if it was started here; the pool then gets another one."""
        self._enter(context, "DrainReplica")
        record = self._state.roster.registry.get(request.replica_id)
        if record is None:
            raise unknown_replica(request.replica_id)
        deadline_ms = min(request.deadline_ms or _DEFAULT_DRAIN_MS, _MAX_DRAIN_MS)
        answer = await self._office.questions.drain(record, deadline_ms)
        self._office.foreman.retire(request.replica_id)
        return answer

    async def FlushReplica(self, request: Any, context: Any) -> fleet_pb2.FlushReplicaResponse:
        self._enter(context, "FlushReplica")
        registry = self._state.roster.registry
        records = [r for r in registry.records() if request.replica_id in ("", r.id)]
        if request.replica_id and not records:
            raise unknown_replica(request.replica_id)
        flushed = await asyncio.gather(*(self._office.questions.flush(record) for record in records))
        return fleet_pb2.FlushReplicaResponse(replicas=flushed)

    async def GetCost(self, request: Any, context: Any) -> Any:
        self._enter(context, "GetCost")
        return await self._office.accountant.report(request)

    async def Audit(self, request: Any, context: Any) -> Any:
        self._enter(context, "Audit")
        found = await self._office.auditor.audit()
        rows = [fleet_pb2.AuditRow(**asdict(one)) for one in found]
        silent = [one.component for one in found if one.is_missing]
        return fleet_pb2.AuditReport(balanced=all(one.balanced for one in found), rows=rows, silent=silent)

    async def ListMetrics(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self._office.gate.check(context)  # no line in the log: somebody watches
        async for told in self._office.metrics.ask():
            yield told

    async def GetTrace(self, request: Any, context: Any) -> Any:
        self._enter(context, "GetTrace")
        found = self._office.traces.find(request.response_id)
        if found is None:
            message = f'no trace of "{request.response_id[:80]}" was kept, or it is too old'
            raise HeadraceError("invalid_argument", message, field="response_id")
        return found

    def _enter(self, context: Any, method: str) -> None:
        self._office.gate.check(context)
        log.info("admin_call", extra={"call": method, "peer": context.peer()})

    def _wanted_key(self, request: Any) -> StoredKey:
        current = self._ledger.current
        if current is not None:
            _check_known("models", request.models, current.fleet.models)
            _check_known("slo_class", [request.slo_class] if request.slo_class else [], current.fleet.classes)
        _check_known("scopes", request.scopes, keys.SCOPES)
        if len(request.project) > 64:
            raise HeadraceError("invalid_argument", "expected at most 64 characters", field="project")
        if request.expires_in_s > _MAX_EXPIRY_S:
            raise HeadraceError("invalid_argument", f"expected at most {_MAX_EXPIRY_S} s", field="expires_in_s")
        return StoredKey(
            key_id="",
            hash=b"",
            tenant=request.tenant,
            project=request.project,
            models=tuple(request.models),
            expires_at_s=self._ledger.now_s() + request.expires_in_s if request.expires_in_s else 0,
            slo_class=request.slo_class,
            scopes=tuple(request.scopes) or keys.SCOPES,
        )


def _check_known(field: str, names: Any, known: Any) -> None:
    for name in names:
        if name not in known:
            raise HeadraceError("invalid_argument", f'"{name}" is none of {", ".join(known)}', field=field)


def _problems(error: InvalidFleet) -> list[fleet_pb2.FleetProblem]:
    return [fleet_pb2.FleetProblem(path=problem.path, message=problem.message) for problem in error.problems]


def _key(key: StoredKey) -> fleet_pb2.Key:
    return fleet_pb2.Key(
        key_id=key.key_id,
        tenant=key.tenant,
        project=key.project,
        models=key.models,
        expires_at_s=key.expires_at_s,
        revoked=key.revoked,
        created_at_s=key.created_at_s,
        slo_class=key.slo_class,
        scopes=key.scopes,
    )
