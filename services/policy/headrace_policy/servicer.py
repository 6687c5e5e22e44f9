"""``headrace.v1.Policy``: the calls of gateways and of the control plane. Decides nothing itself."""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.v1 import policy_pb2 as pb
from headrace.v1 import policy_pb2_grpc
from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from headrace_policy import identity, messages, quota_report
from headrace_policy.admitter import Admitter, store_away
from headrace_policy.book import Shelf
from headrace_policy.bookkeeper import Bookkeeper
from headrace_policy.journal import Journal, JournalError, Row
from headrace_policy.jwt_identity import Issuer
from headrace_policy.ledger import Held
from headrace_policy.redis_ledger import RedisLedger
from headrace_policy.redis_link import StoreAwayError
from headrace_policy.screening.floor import Floor
from headrace_policy.screening.jury import Jury

_MAX_MODELS_SEEN = 1000
_settled = telemetry.counter("settlements_total", "Settlements by what they did", ["state"])
_renewed = telemetry.counter("renewals_total", "Renewed reservations by what was found", ["state"])
_STATES = {
    "applied": pb.SettleResponse.STATE_APPLIED,
    "duplicate": pb.SettleResponse.STATE_DUPLICATE,
    "corrected": pb.SettleResponse.STATE_CORRECTED,
}


@dataclass(frozen=True)
class Desk:
    """Everything that answers calls."""

    shelf: Shelf
    ledger: RedisLedger
    admitter: Admitter
    bookkeeper: Bookkeeper
    journal: Journal
    jury: Jury
    issuer: Issuer | None = None


class PolicyServicer(policy_pb2_grpc.PolicyServicer):
    def __init__(self, desk: Desk, clock: Callable[[], float] = time.time) -> None:
        self._desk, self._shelf, self._clock = desk, desk.shelf, clock
        self._models_seen: set[str] = set()

    async def Authenticate(self, request: Any, context: Any) -> pb.Identity:
        return identity.authenticate(
            self._shelf.book, request.credential, request.model, self._clock(), self._desk.issuer
        )

    async def Admit(self, request: Any, context: Any) -> pb.AdmitResponse:
        answer = await self._desk.admitter.admit(request)
        self._desk.bookkeeper.touch(request.reservation.identity.tenant)
        if len(self._models_seen) < _MAX_MODELS_SEEN:
            self._models_seen.add(request.reservation.model)
        return answer

    async def Renew(self, request: Any, context: Any) -> pb.RenewResponse:
        by_tenant: dict[str, list[Held]] = defaultdict(list)
        for reservation in request.reservations:
            messages.check(reservation)
            by_tenant[reservation.identity.tenant].append(messages.held(reservation, self._shelf.book))
        states: dict[str, str] = {}
        try:
            for tenant, items in by_tenant.items():
                self._desk.bookkeeper.touch(tenant)
                found = await self._desk.ledger.renew(tenant, items)
                states.update(zip((item.response_id for item in items), found, strict=True))
        except StoreAwayError as error:
            raise store_away(error) from error
        for state in states.values():
            _renewed.labels(state).inc()
        ids = [reservation.response_id for reservation in request.reservations]
        return pb.RenewResponse(results=[pb.RenewResult(response_id=name, state=states[name]) for name in ids])

    async def Settle(self, request: Any, context: Any) -> pb.SettleResponse:
        messages.check(request.reservation)
        closing = messages.closing(request, self._shelf.book)
        try:
            closed = await self._desk.bookkeeper.settle(request.reservation.identity.tenant, closing)
        except StoreAwayError as error:
            raise store_away(error) from error
        _settled.labels(closed.state).inc()
        return pb.SettleResponse(state=_STATES[closed.state], cost=closed.cost)

    async def Screen(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.ScreenVerdict]:
        verdicts = Floor(self._shelf.rules_of, self._desk.jury).answer(request_iterator)
        async with contextlib.aclosing(verdicts):
            async for verdict in verdicts:
                yield verdict

    async def GetUsage(self, request: Any, context: Any) -> AsyncIterator[pb.UsageRow]:
        tenants = [request.tenant] if request.tenant else list(self._shelf.book.tenants)
        try:
            await self._desk.bookkeeper.flush()
            for tenant in tenants:
                await self._desk.bookkeeper.visit(tenant)
        except StoreAwayError:
            pass  # what is on disk is all that can be told
        except JournalError as error:
            raise HeadraceError("policy_unavailable", f"the usage journal cannot be written: {error}") from error
        to_ms = request.to_ms or round(self._clock() * 1000) + 86_400_000
        rows = self._desk.journal.between(request.tenant, request.from_ms, to_ms)
        while (row := await asyncio.to_thread(_next, rows)) is not None:
            yield pb.UsageRow(
                settlement=pb.SettleRequest.FromString(row.settlement),
                settled_at_ms=row.settled_at_ms,
                cost=row.cost,
                correction=row.correction,
                row_id=row.row_id,
            )

    async def GetQuota(self, request: Any, context: Any) -> pb.QuotaReport:
        book = self._shelf.book
        if request.tenant not in book.tenants:
            raise HeadraceError("invalid_argument", "is not a known tenant", field="tenant")
        try:
            return await quota_report.report(book, self._desk.ledger, request.tenant, self._models_seen)
        except StoreAwayError as error:
            raise store_away(error) from error


def _next(rows: Iterator[Row]) -> Row | None:
    try:
        return next(rows, None)
    except JournalError as error:
        raise HeadraceError("policy_unavailable", f"the usage journal cannot be read: {error}") from error
