"""Calls to the router: a decision per attempt, and what became of it."""

import asyncio
import logging
from typing import Any

import grpc

from headrace.v1 import routing_pb2 as pb
from headrace.v1 import routing_pb2_grpc
from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError, from_rpc_error
from headrace_kit.lifecycle import backoff_s

log = logging.getLogger(__name__)
_REPORT_S = 2.0
_MAX_PENDING = 10_000
_dropped = telemetry.counter(
    "route_reports_dropped_total", "Outcomes that the router never hears: it was away too long, or will not take them"
)


class RouterClient:
    """One channel to the router. Reports leave in batches; while the router is away the oldest are dropped, counted.

    Of a batch that it refuses each outcome is sent alone, so that only the one at fault is lost.
    """

    def __init__(self, channel: grpc.aio.Channel, gateway_id: str) -> None:
        self._stub: Any = routing_pb2_grpc.RouterStub(channel)
        self._gateway_id = gateway_id
        self._pending: list[pb.AttemptOutcome] = []
        self._most = _MAX_PENDING
        self._wake = asyncio.Event()

    async def route(self, request: pb.RouteRequest, timeout_s: float) -> pb.RouteResponse:
        """Raises HeadraceError: no_replica, busy, … or no_replica when the router itself does not answer."""
        request.gateway_id = self._gateway_id
        try:
            answer: pb.RouteResponse = await self._stub.Route(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise HeadraceError("no_replica", "no replica became ready in time") from error
            raise from_rpc_error(error, fallback="no_replica") from error
        return answer

    def report(self, outcome: pb.AttemptOutcome) -> None:
        """Queues one outcome."""
        self._pending.append(outcome)
        if len(self._pending) > _MAX_PENDING:
            del self._pending[0]
            _dropped.inc()
        self._wake.set()

    async def run(self) -> None:
        """Sends reports for ever; for `host.tasks.start`."""
        attempt = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._pending = self._pending[: self._most], self._pending[self._most :]
            try:
                report = pb.ReportRequest(outcomes=batch, gateway_id=self._gateway_id)
                await self._stub.Report(report, timeout=_REPORT_S)
                attempt = 0
            except grpc.aio.AioRpcError as error:
                log.warning("report_failed", extra={"code": error.code().name, "num_outcomes": len(batch)})
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    self._refused(batch)
                else:
                    self._pending = (batch + self._pending)[-_MAX_PENDING:]
                    await asyncio.sleep(backoff_s(attempt))
                    attempt += 1
            if self._pending:
                self._wake.set()
            else:
                self._most = _MAX_PENDING

    def _refused(self, batch: list[pb.AttemptOutcome]) -> None:
        if len(batch) == 1:
            _dropped.inc()
        else:
            self._pending, self._most = batch + self._pending, 1
