"""What the audit asks of policy: the reservations that are out."""

from typing import Any

from headrace.v1 import fleet_pb2, fleet_pb2_grpc
from headrace_kit import telemetry
from headrace_policy.admitter import store_away
from headrace_policy.book import Shelf
from headrace_policy.redis_ledger import RedisLedger
from headrace_policy.redis_link import StoreAwayError


class BookkeepingServicer(fleet_pb2_grpc.BookkeepingServicer):
    """``instance`` is this process's name. The store is shared: every policy process gives the same answer."""

    def __init__(self, instance: str, shelf: Shelf, ledger: RedisLedger) -> None:
        self._instance, self._shelf, self._ledger = instance, shelf, ledger

    async def GetBooks(self, request: fleet_pb2.GetBooksRequest, context: Any) -> fleet_pb2.GetBooksResponse:
        try:
            counts = [await self._ledger.num_leases(tenant) for tenant in self._shelf.book.tenants]
        except StoreAwayError as error:
            raise store_away(error) from error
        return fleet_pb2.GetBooksResponse(component=f"policy {self._instance}", num_reservations=sum(counts))

    async def GetMetrics(self, request: fleet_pb2.GetMetricsRequest, context: Any) -> fleet_pb2.GetMetricsResponse:
        return fleet_pb2.GetMetricsResponse(text=telemetry.exposition()[0].decode())
