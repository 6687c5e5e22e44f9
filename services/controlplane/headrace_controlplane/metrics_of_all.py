"""The metrics of every process that can be asked, for a person who watches. Reads none of them."""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc

from headrace.v1 import fleet_pb2, fleet_pb2_grpc
from headrace_controlplane.peers import Peers
from headrace_controlplane.registry import Registry
from headrace_controlplane.roll_call import RollCall
from headrace_controlplane.subscribers import Subscribers
from headrace_kit import telemetry

log = logging.getLogger(__name__)
_ASK_S = 3.0


class MetricsOfAll:
    """Who is asked follows from the subscriptions, those that broke off among them, and the registry."""

    def __init__(self, subscribers: Subscribers, registry: Registry, peers: Peers) -> None:
        self._roll_call, self._registry, self._peers = RollCall(subscribers), registry, peers

    async def ask(self) -> AsyncIterator[fleet_pb2.ProcessMetrics]:
        """This process first, the others as they answer; one that does not is told as silent."""
        own = telemetry.exposition()[0].decode()
        yield fleet_pb2.ProcessMetrics(service="controlplane", instance="controlplane", text=own)
        asked = [
            (service, endpoint, endpoint)
            for service in ("gateway", "policy", "router")
            for endpoint in await self._roll_call.endpoints(service)
        ]
        asked += [("worker", record.id, record.endpoint) for record in self._registry.records()]
        for answer in asyncio.as_completed([self._ask(*one) for one in asked]):
            yield await answer

    async def _ask(self, service: str, name: str, endpoint: str) -> fleet_pb2.ProcessMetrics:
        stub = fleet_pb2_grpc.BookkeepingStub(self._peers.channel(endpoint, service))
        try:
            answer = await stub.GetMetrics(fleet_pb2.GetMetricsRequest(), timeout=_ASK_S)
        except grpc.aio.AioRpcError as error:
            log.info("metrics_not_told", extra={"peer_service": service, "peer": name, "code": error.code().name})
            return fleet_pb2.ProcessMetrics(service=service, instance=name, silent=True)
        return fleet_pb2.ProcessMetrics(service=service, instance=name, text=answer.text)
