"""What operators ask of policy, routers and workers, through the control plane. Decides nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc

from headrace.v1 import (
    policy_pb2,
    policy_pb2_grpc,
    response_pb2,
    routing_pb2,
    routing_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from headrace_controlplane.levels_of_all import Answer, levels_of_all
from headrace_controlplane.peers import Peers
from headrace_controlplane.registry import Record
from headrace_controlplane.roll_call import RollCall
from headrace_controlplane.subscribers import Subscribers
from headrace_controlplane.usage_merge import merged
from headrace_kit.errors import HeadraceError, from_rpc_error

log = logging.getLogger(__name__)
_ASK_S = 10.0
_DRAIN_MARGIN_S = 10.0


class Questions:
    """Who is asked follows from the subscriptions."""

    def __init__(self, subscribers: Subscribers, peers: Peers) -> None:
        self._subscribers, self._peers = subscribers, peers
        self._roll_call = RollCall(subscribers)

    async def quota(self, query: policy_pb2.QuotaQuery) -> policy_pb2.QuotaReport:
        """Asks every policy and needs one; raises what they said if none can tell."""
        answer = await levels_of_all([self._levels(policy, query) for policy in await self._policies()])
        if isinstance(answer, HeadraceError):
            raise answer
        return answer

    async def usage(self, query: policy_pb2.UsageQuery) -> AsyncIterator[policy_pb2.UsageRow]:
        """Asks every policy, for each keeps what it settled. All must answer: a bill may lack nothing."""
        policies = await self._policies()
        calls = [policy_pb2_grpc.PolicyStub(each).GetUsage(query, timeout=6 * _ASK_S) for each in policies]
        try:
            async for row in merged([aiter(call) for call in calls]):
                yield row
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, fallback="policy_unavailable") from error
        finally:
            for call in calls:
                call.cancel()

    async def explanation(self, query: routing_pb2.ExplainRequest) -> routing_pb2.ExplainResponse:
        """Asks every router, for only the one that decided knows; raises InvalidRequest if none does."""
        endpoints = self._subscribers.endpoints("router")
        answers = await asyncio.gather(*(self._explain(endpoint, query) for endpoint in endpoints))
        for answer in answers:
            if answer is not None:
                return answer
        message = f'none of {len(endpoints)} routers knows decision "{query.decision_id}"'
        raise HeadraceError("invalid_argument", message, field="decision_id")

    async def drain(self, record: Record, deadline_ms: int) -> worker_pb2.DrainResponse:
        request = worker_pb2.DrainRequest(deadline_ms=deadline_ms)
        return await self._worker(record, "Drain", request, deadline_ms / 1000 + _DRAIN_MARGIN_S)  # type: ignore[no-any-return]

    async def flush(self, record: Record) -> response_pb2.ReplicaRef:
        answer = await self._worker(record, "FlushCache", worker_pb2.FlushCacheRequest(), _ASK_S)
        return response_pb2.ReplicaRef(id=record.id, epoch=answer.epoch, endpoint=record.endpoint)

    async def _worker(self, record: Record, method: str, request: Any, timeout_s: float) -> Any:
        stub = worker_pb2_grpc.EngineStub(self._peers.channel(record.endpoint, "worker"))
        try:
            return await getattr(stub, method)(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, fallback="no_replica") from error

    async def _explain(self, endpoint: str, query: routing_pb2.ExplainRequest) -> routing_pb2.ExplainResponse | None:
        stub = routing_pb2_grpc.RouterStub(self._peers.channel(endpoint, "router"))
        try:
            return await stub.Explain(query, timeout=_ASK_S)  # type: ignore[no-any-return]
        except grpc.aio.AioRpcError as error:
            log.info("router_does_not_know", extra={"router": endpoint, "code": error.code().name})
            return None

    async def _levels(self, policy: grpc.aio.Channel, query: policy_pb2.QuotaQuery) -> Answer:
        try:
            return await policy_pb2_grpc.PolicyStub(policy).GetQuota(query, timeout=_ASK_S)  # type: ignore[no-any-return]
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error, fallback="policy_unavailable")

    async def _policies(self) -> list[grpc.aio.Channel]:
        """At least one."""
        endpoints = await self._roll_call.endpoints("policy")
        if not endpoints:
            raise HeadraceError("policy_unavailable", "no policy service subscribes to this control plane")
        return [self._peers.channel(endpoint, "policy") for endpoint in endpoints]


def unknown_replica(replica_id: str) -> HeadraceError:
    return HeadraceError("invalid_argument", f'there is no replica "{replica_id}"', field="replica_id")
