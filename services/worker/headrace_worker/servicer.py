"""The Engine service of the contract. Knows how calls arrive; what they mean is the business of those it was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, worker_pb2, worker_pb2_grpc
from headrace_kit import telemetry
from headrace_worker.attach import Attach
from headrace_worker.books import hand_off_rows
from headrace_worker.drain import drain
from headrace_worker.kv_pulls import Pulls
from headrace_worker.supervision import Supervision
from headrace_worker.watch import Watch


class EngineServicer(worker_pb2_grpc.EngineServicer):
    """`closing` is set when the process stops serving for good."""

    def __init__(self, supervision: Supervision, closing: asyncio.Event) -> None:
        self._supervision, self._closing = supervision, closing

    async def Attach(self, request_iterator: AsyncIterator[worker_pb2.Command], context: Any) -> None:
        await Attach(self._supervision.replica, self._supervision.dispatch, self._closing).run(
            request_iterator, context
        )

    def Watch(self, request: worker_pb2.WatchRequest, context: Any) -> AsyncIterator[worker_pb2.WatchEvent]:
        watched = self._supervision
        return Watch(watched.replica, watched.dispatch, watched.pages).events(request)

    async def Describe(self, request: worker_pb2.DescribeRequest, context: Any) -> worker_pb2.Description:
        return self._supervision.replica.describe()

    async def Drain(self, request: worker_pb2.DrainRequest, context: Any) -> worker_pb2.DrainResponse:
        watched = self._supervision
        num_ended = await drain(watched.replica, watched.dispatch, request.deadline_ms / 1000)
        return worker_pb2.DrainResponse(num_ended=num_ended)

    async def FlushCache(self, request: worker_pb2.FlushCacheRequest, context: Any) -> worker_pb2.FlushCacheResponse:
        return worker_pb2.FlushCacheResponse(epoch=self._supervision.flush())


class BookkeepingServicer(fleet_pb2_grpc.BookkeepingServicer):
    """What the audit asks."""

    def __init__(self, supervision: Supervision, pulls: Pulls) -> None:
        self._supervision, self._pulls = supervision, pulls

    async def GetBooks(self, request: fleet_pb2.GetBooksRequest, context: Any) -> fleet_pb2.GetBooksResponse:
        dispatch, replica = self._supervision.dispatch, self._supervision.replica
        report = dispatch.books.report(replica.ref, replica.load, dispatch.attempts)
        report.rows.extend(hand_off_rows(self._supervision.sources.tally, self._pulls.tally))
        return report

    async def GetMetrics(self, request: fleet_pb2.GetMetricsRequest, context: Any) -> fleet_pb2.GetMetricsResponse:
        return fleet_pb2.GetMetricsResponse(text=telemetry.exposition()[0].decode())
