"""What became of every response of this process, and whether it adds up. Counts only."""

from collections import Counter
from typing import Any

from headrace.v1 import fleet_pb2, fleet_pb2_grpc
from headrace_gateway.renewals import Renewals
from headrace_gateway.sessions import Sessions
from headrace_gateway.settler import Settler
from headrace_kit import telemetry


class Books:
    """Counters of one process; each of the methods is called once for what it is about."""

    def __init__(self, instance: str, sessions: Sessions, settler: Settler, renewals: Renewals) -> None:
        self._instance, self._sessions, self._settler, self._renewals = instance, sessions, settler, renewals
        self._num_declined = self._num_settled = self._num_created = 0
        self._ended: Counter[str] = Counter()

    def declined(self) -> None:
        """It ended before anything was reserved."""
        self._num_declined += 1

    def settled(self) -> None:
        """What it had reserved is given back or charged."""
        self._num_settled += 1

    def created(self) -> None:
        self._num_created += 1

    def ended(self, kind: str) -> None:
        """Its one terminal."""
        self._ended[kind] += 1

    def report(self) -> fleet_pb2.GetBooksResponse:
        running = list(self._sessions)
        num_open = sum(session.created for session in running)
        over = self._num_declined + self._num_settled
        books = self._settler
        rows = [
            _row("begun = declined + settled + running", self._sessions.num_started, over + len(running)),
            _row(
                "created = completed + incomplete + failed + cancelled + running",
                self._num_created,
                self._ended.total() + num_open,
            ),
            _row(
                "settlements = confirmed + set aside + waiting",
                books.num_given,
                books.num_confirmed + books.num_set_aside + books.num_waiting,
            ),
            _row("waiting settlements = those sent and those on disk", books.num_waiting, books.num_in_hand),
        ]
        return fleet_pb2.GetBooksResponse(
            component=f"gateway {self._instance}",
            rows=rows,
            num_reservations=len(self._renewals),
            num_attempts=sum(session.attempt > 0 for session in running),
            num_waiting=books.num_waiting,
        )


class BookkeepingServicer(fleet_pb2_grpc.BookkeepingServicer):
    """What the audit asks."""

    def __init__(self, books: Books) -> None:
        self._books = books

    async def GetBooks(self, request: fleet_pb2.GetBooksRequest, context: Any) -> fleet_pb2.GetBooksResponse:
        return self._books.report()

    async def GetMetrics(self, request: fleet_pb2.GetMetricsRequest, context: Any) -> fleet_pb2.GetMetricsResponse:
        return fleet_pb2.GetMetricsResponse(text=telemetry.exposition()[0].decode())


def _row(equation: str, left: int, right: int) -> fleet_pb2.AuditRow:
    return fleet_pb2.AuditRow(equation=equation, left=left, right=right, balanced=left == right)
