"""Gives up the decisions of gateways that are gone, so that they burden no replica and no audit. Takes no decision.

Three have to agree, for an answer that still runs must keep its decision: the control plane calls the gateway gone all
through its orphan time, the gateway does not call this router meanwhile, and the replica says that it is not attached.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import grpc

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, routing_pb2
from headrace_kit import telemetry
from headrace_router.gateways import Gateways
from headrace_router.in_flight import InFlight
from headrace_router.replicas import ReplicaTable

log = logging.getLogger(__name__)
LOOK_S = 5.0
_ASK_S = 5.0
_given_up = telemetry.counter("route_decisions_given_up_total", "Decisions of gateways that died before they reported")


class GatewayWatch:
    """``run`` for ever. ``settle`` takes an outcome as if the gateway had reported it."""

    def __init__(
        self,
        in_flight: InFlight,
        table: ReplicaTable,
        channel: grpc.aio.Channel,
        settle: Callable[[routing_pb2.AttemptOutcome], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._in_flight, self._table, self._settle, self._clock = in_flight, table, settle, clock
        self._stub: Any = fleet_pb2_grpc.FleetStub(channel)

    @property
    def _gateways(self) -> Gateways:
        return self._in_flight.gateways

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._in_flight.forget(self._clock())
            await self.look()

    async def look(self) -> None:
        """Asks once. Without an answer nothing is known anew, and nothing is given up."""
        asked = self._gateways.waiting()
        if not asked:
            return
        try:
            request = fleet_pb2.FindGoneRequest(service="gateway", instances=asked)
            answer = await self._stub.FindGone(request, timeout=_ASK_S)
        except grpc.aio.AioRpcError as error:
            log.debug("gone_not_told", extra={"code": error.code().name})
            return
        for gateway_id in self._gateways.told(set(asked), set(answer.gone), self._clock()):
            self._give_up(gateway_id)

    def _give_up(self, gateway_id: str) -> None:
        decision_ids = [each for each in self._gateways.decisions(gateway_id) if not self._may_run(each, gateway_id)]
        for decision_id in decision_ids:
            self._settle(routing_pb2.AttemptOutcome(decision_id=decision_id, outcome="failed", reason="gateway_lost"))
            _given_up.inc()
        if decision_ids:
            facts = {"lost_gateway": gateway_id, "num_decisions": len(decision_ids), "decisions": decision_ids[:20]}
            log.warning("decisions_given_up", extra=facts)

    def _may_run(self, decision_id: str, gateway_id: str) -> bool:
        sent = self._in_flight.get(decision_id)
        return sent is not None and self._table.may_serve(sent.replica_id, gateway_id)
