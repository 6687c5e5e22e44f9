"""Admission: the tenant's rules on input, then one reservation; and what is done when Redis is away (decision 8)."""

import logging
import time
from collections.abc import Callable

from headrace.v1 import policy_pb2 as pb
from headrace_kit import telemetry, tracing
from headrace_kit.errors import HeadraceError
from headrace_policy import messages
from headrace_policy.allowance import Allowance
from headrace_policy.book import Book, Shelf
from headrace_policy.ledger import Admission, Terms, Verdict
from headrace_policy.limits import Limit
from headrace_policy.redis_ledger import RedisLedger
from headrace_policy.redis_link import StoreAwayError
from headrace_policy.regrets import Regrets
from headrace_policy.screening.doorway import Doorway
from headrace_policy.screening.ruleset import Ruleset

log = logging.getLogger(__name__)
_admits = telemetry.counter("admits_total", "Admissions by verdict", ["verdict"])


class Admitter:
    """Every refusal that is a limit's is an answer; everything else is raised."""

    def __init__(
        self,
        shelf: Shelf,
        ledger: RedisLedger,
        allowance: Allowance,
        regrets: Regrets,
        doorway: Doorway,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._shelf, self._ledger, self._allowance, self._regrets = shelf, ledger, allowance, regrets
        self._doorway, self._clock = doorway, clock

    async def admit(self, request: pb.AdmitRequest) -> pb.AdmitResponse:
        """Raises invalid_argument, permission_denied, invalid_retry_of, policy_unavailable, quota_unavailable."""
        book, asked = self._shelf.book, request.reservation
        messages.check(asked)
        if asked.identity.tenant not in book.tenants:
            raise HeadraceError("permission_denied", "this tenant does not exist (any more)")
        await self._doorway.check(book.tenants[asked.identity.tenant].rules, request.text)
        limits = book.limits(messages.caller(asked))
        terms = messages.needed(limits, messages.declared(asked), book.price(asked.model))
        admission = Admission(asked.response_id, limits, terms, asked.SerializeToString(), request.retry_of)
        try:
            verdict = await self._ledger.admit(asked.identity.tenant, admission)
        except StoreAwayError as error:
            return self._without_store(book, asked, error)
        _admits.labels(verdict.state).inc()
        tracing.annotate(verdict=verdict.state)
        return self._answer(asked, limits, terms, verdict)

    def _answer(self, asked: pb.Reservation, limits: list[Limit], terms: Terms, verdict: Verdict) -> pb.AdmitResponse:
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
        whole = messages.stamped(asked, verdict.at_ms, verdict.terms)
        answer = self._granted(whole, verdict.terms)
        answer.rate_limits.extend(messages.rate_limits(limits, verdict.levels))
        return answer

    def _without_store(self, book: Book, asked: pb.Reservation, error: StoreAwayError) -> pb.AdmitResponse:
        if self._allowance.grants(book, asked.identity.tenant, messages.declared(asked)):
            _admits.labels("local").inc()
            # It carries no charges: its first renewal or its settlement takes them when Redis is back.
            whole = messages.stamped(asked, round(self._clock() * 1000), Terms())
            return self._granted(whole, Terms(prices=book.price(asked.model)))
        if error.sent:
            self._regrets.add(asked)
        _admits.labels("quota_unavailable").inc()
        raise store_away(error) from error

    def _granted(self, whole: pb.Reservation, terms: Terms) -> pb.AdmitResponse:
        rules = self._shelf.book.rules_of(whole.identity.tenant) or Ruleset()
        return pb.AdmitResponse(
            admitted=True,
            reservation=whole,
            lease_ms=self._ledger.lease_ms,
            price=messages.price(terms.prices),
            screen_output=rules.reads_output,
            screen_fail_open=rules.reads_output and rules.output_fails_open,
        )


def store_away(error: StoreAwayError) -> HeadraceError:
    """Never 429: that would blame the tenant."""
    log.warning("quota_unavailable", extra={"detail": str(error)})
    return HeadraceError("quota_unavailable", "the quota store does not answer", retry_after_s=1.0)
