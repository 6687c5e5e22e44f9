"""Tells others how things stand: demand to the control plane, a health component per model. Decides nothing."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from headrace.v1 import fleet_pb2, fleet_pb2_grpc
from headrace_kit import telemetry
from headrace_kit.health import Health
from headrace_kit.lifecycle import cancel_and_wait
from headrace_router.demand import Demand
from headrace_router.fleet_rules import FleetRules
from headrace_router.replicas import ReplicaTable

log = logging.getLogger(__name__)
_ready = telemetry.gauge("ready_replicas", "Replicas that this router may choose, over all models")
INTERVAL_S = 1.0
_TIMEOUT_S = 0.9


class DemandReporter:
    """``run`` for ever: one report a second. What was asked for is lost while the control plane is away; outcomes are
    totals, so the next report has them."""

    def __init__(
        self,
        demand: Demand,
        channel: grpc.aio.Channel,
        router_id: str,
        loads: Callable[[], Iterable[fleet_pb2.PoolLoad]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._demand, self._router_id, self._loads, self._clock = demand, router_id, loads, clock
        self._stub: Any = fleet_pb2_grpc.FleetStub(channel)

    async def run(self) -> None:
        last = self._clock()
        while True:
            await asyncio.sleep(INTERVAL_S)
            now = self._clock()
            interval_ms = round((now - last) * 1000)
            last = now
            report = fleet_pb2.DemandReport(
                router_id=self._router_id,
                interval_ms=interval_ms,
                models=self._demand.take(now),
                outcomes=self._demand.outcome_rows(),
                pools=self._loads(),
            )
            try:
                await self._stub.Demand(report, timeout=_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                log.debug("demand_not_reported", extra={"code": error.code().name})


class ModelHealth:
    """One component ``model:NAME`` per model, not critical: without a replica requests are held (decision 16)."""

    def __init__(self, health: Health, rules: FleetRules, table: ReplicaTable) -> None:
        self._health, self._rules, self._table = health, rules, table
        self._declared: set[str] = set()

    async def run(self) -> None:
        while True:
            changed = self._table.changed
            self.update()
            waiting = asyncio.create_task(changed.wait())
            await asyncio.wait([waiting], timeout=INTERVAL_S)
            await cancel_and_wait(waiting)

    def update(self) -> None:
        _ready.set(sum(replica.ready for replica in self._table))
        for model in self._rules.models:
            if model not in self._declared:
                self._declared.add(model)
                self._health.add(f"model:{model}", critical=False, reason="no replica is ready")
        for model in self._declared:
            if model not in self._rules.models:
                self._health.not_serving(f"model:{model}", "the model left the fleet")
            elif self._table.num_ready(model):
                self._health.serving(f"model:{model}")
            else:
                self._health.not_serving(f"model:{model}", "no replica is ready")
