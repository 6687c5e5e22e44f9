"""What the audit asks of a router: the decisions whose outcome it waits for."""

from typing import Any

from headrace.v1 import fleet_pb2, fleet_pb2_grpc
from headrace_kit import telemetry
from headrace_router.in_flight import InFlight


class BookkeepingServicer(fleet_pb2_grpc.BookkeepingServicer):
    """``instance`` is this process's name."""

    def __init__(self, instance: str, in_flight: InFlight) -> None:
        self._instance, self._in_flight = instance, in_flight

    async def GetBooks(self, request: fleet_pb2.GetBooksRequest, context: Any) -> fleet_pb2.GetBooksResponse:
        by_replica = self._in_flight.num_by_replica()
        row = fleet_pb2.AuditRow(
            equation="decisions in flight = sum over replicas", left=len(self._in_flight), right=by_replica
        )
        row.balanced = row.left == row.right
        return fleet_pb2.GetBooksResponse(
            component=f"router {self._instance}", rows=[row], num_attempts=len(self._in_flight)
        )

    async def GetMetrics(self, request: fleet_pb2.GetMetricsRequest, context: Any) -> fleet_pb2.GetMetricsResponse:
        return fleet_pb2.GetMetricsResponse(text=telemetry.exposition()[0].decode())
