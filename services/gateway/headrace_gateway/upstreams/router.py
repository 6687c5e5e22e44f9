"""Calls to the router: a decision per attempt, and what became of it."""

import asyncio
import logging
from typing import Any

import grpc

from headrace.v1 import routing_pb2 as pb
from headrace.v1 import routing_pb2_grpc
from headrace_kit.errors import HeadraceError, from_rpc_error
from headrace_kit.lifecycle import backoff_s

log = logging.getLogger(__name__)
_REPORT_S = 2.0
_MAX_PENDING = 10_000


class RouterClient:
    """One channel to the router. Reports leave in batches; while the router is away the oldest are dropped, counted."""

    def __init__(self, channel: grpc.aio.Channel, gateway_id: str) -> None:
        self._stub: Any = routing_pb2_grpc.RouterStub(channel)
        self._gateway_id = gateway_id
        self._pending: list[pb.AttemptOutcome] = []
        self._wake = asyncio.Event()
        self.num_dropped = 0

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
            self.num_dropped += 1
        self._wake.set()

    async def run(self) -> None:
        """Sends reports for ever; for `host.tasks.start`."""
        attempt = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._pending = self._pending, []
            try:
                report = pb.ReportRequest(outcomes=batch, gateway_id=self._gateway_id)
                await self._stub.Report(report, timeout=_REPORT_S)
                attempt = 0
            except grpc.aio.AioRpcError as error:
                log.warning("report_failed", extra={"code": error.code().name, "num_outcomes": len(batch)})
                self._pending = (batch + self._pending)[-_MAX_PENDING:]
                self._wake.set()
                await asyncio.sleep(backoff_s(attempt))
                attempt += 1
