"""``headrace.v1.Policy``: the calls of gateways and of the control plane. Decides nothing itself."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from headrace.v1 import policy_pb2 as pb
from headrace.v1 import policy_pb2_grpc
from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from headrace_policy import identity, messages
from headrace_policy.book import Shelf
from headrace_policy.redis_ledger import Admission, Held, RedisLedger
from headrace_policy.redis_link import StoreAwayError

log = logging.getLogger(__name__)
_admits = telemetry.counter("admits_total", "Admissions by verdict", ["verdict"])
_settled = telemetry.counter("settlements_total", "Settlements by what they did", ["state"])
_STATES = {
    "applied": pb.SettleResponse.STATE_APPLIED,
    "duplicate": pb.SettleResponse.STATE_DUPLICATE,
    "corrected": pb.SettleResponse.STATE_CORRECTED,
}


class PolicyServicer(policy_pb2_grpc.PolicyServicer):
    def __init__(self, shelf: Shelf, ledger: RedisLedger, clock: Callable[[], float] = time.time) -> None:
        self._shelf, self._ledger, self._clock = shelf, ledger, clock

    async def Authenticate(self, request: Any, context: Any) -> pb.Identity:
        return identity.authenticate(self._shelf.book, request.credential, request.model, self._clock())

    async def Admit(self, request: Any, context: Any) -> pb.AdmitResponse:
        book, asked = self._shelf.book, request.reservation
        messages.check(asked, book)
        limits = book.limits(messages.caller(asked))
        terms = messages.needed(limits, messages.declared(asked), book.price(asked.model))
        admission = Admission(asked.response_id, limits, terms, asked.SerializeToString(), request.retry_of)
        try:
            verdict = await self._ledger.admit(asked.identity.tenant, admission)
        except StoreAwayError as error:
            _admits.labels("quota_unavailable").inc()
            raise _away(error) from error
        _admits.labels(verdict.state).inc()
        if verdict.state == "refused":
            refusing = verdict.refusing
            answer = messages.refusal(limits[refusing], verdict, terms.charges[refusing].units)
            answer.rate_limits.extend(messages.rate_limits(limits, verdict.levels))
            return answer
        if verdict.state == "retry_of":
            message = "names no failed response of this tenant in the last 24 hours"
            raise HeadraceError("invalid_retry_of", message, field="retry_of")
        if verdict.state == "settled":
            raise HeadraceError("policy_unavailable", "this response was settled before it was admitted")
        return pb.AdmitResponse(
            admitted=True,
            reservation=messages.stamped(asked, verdict.at_ms, verdict.terms),
            lease_ms=self._ledger.lease_ms,
            rate_limits=messages.rate_limits(limits, verdict.levels),
            price=messages.price(verdict.terms.prices),
        )

    async def Renew(self, request: Any, context: Any) -> pb.RenewResponse:
        book = self._shelf.book
        by_tenant: dict[str, list[Held]] = defaultdict(list)
        for reservation in request.reservations:
            messages.check(reservation, book)
            by_tenant[reservation.identity.tenant].append(messages.held(reservation, book))
        states: dict[str, str] = {}
        try:
            for tenant, items in by_tenant.items():
                found = await self._ledger.renew(tenant, items)
                states.update(zip((item.response_id for item in items), found, strict=True))
        except StoreAwayError as error:
            raise _away(error) from error
        ids = [reservation.response_id for reservation in request.reservations]
        return pb.RenewResponse(results=[pb.RenewResult(response_id=name, state=states[name]) for name in ids])

    async def Settle(self, request: Any, context: Any) -> pb.SettleResponse:
        book = self._shelf.book
        messages.check(request.reservation, book)
        closing = messages.closing(request, book)
        try:
            closed = await self._ledger.settle(request.reservation.identity.tenant, closing)
        except StoreAwayError as error:
            raise _away(error) from error
        _settled.labels(closed.state).inc()
        return pb.SettleResponse(state=_STATES[closed.state], cost=closed.cost)


def _away(error: StoreAwayError) -> HeadraceError:
    """Never 429: that would blame the tenant (decision 8)."""
    log.warning("quota_unavailable", extra={"detail": str(error)})
    return HeadraceError("quota_unavailable", "the quota store does not answer", retry_after_s=1.0)
