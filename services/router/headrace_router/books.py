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
        flight = self._in_flight
        over = flight.num_told + flight.num_void
        rows = [
            _row("decisions in flight = sum over replicas", len(flight), flight.num_by_replica()),
            _row("decisions = ended + void with their replica + in flight", flight.num_added, over + len(flight)),
        ]
        return fleet_pb2.GetBooksResponse(component=f"router {self._instance}", rows=rows, num_attempts=len(flight))

    async def GetMetrics(self, request: fleet_pb2.GetMetricsRequest, context: Any) -> fleet_pb2.GetMetricsResponse:
        return fleet_pb2.GetMetricsResponse(text=telemetry.exposition()[0].decode())


def _row(equation: str, left: int, right: int) -> fleet_pb2.AuditRow:
    return fleet_pb2.AuditRow(equation=equation, left=left, right=right, balanced=left == right)
