"""Between the contract's messages and the ledger's plain data. No I/O, no state."""

import math

from headrace.v1 import policy_pb2 as pb
from headrace.v1 import response_pb2
from headrace_kit.errors import HeadraceError
from headrace_policy import decide
from headrace_policy.book import Book
from headrace_policy.decide import Declared, Prices
from headrace_policy.ledger import Charge, Closing, Held, Terms, Verdict
from headrace_policy.limits import NEVER, PERIOD_MS, REASONS, SCOPES, Caller, Limit

MAX_ID = 128
_KINDS = {
    response_pb2.TERMINAL_KIND_COMPLETED: "completed",
    response_pb2.TERMINAL_KIND_INCOMPLETE: "incomplete",
    response_pb2.TERMINAL_KIND_FAILED: "failed",
    response_pb2.TERMINAL_KIND_CANCELLED: "cancelled",
}
_SOURCES = {
    pb.SETTLEMENT_SOURCE_OWNER: "owner",
    pb.SETTLEMENT_SOURCE_ORPHAN: "orphan",
    pb.SETTLEMENT_SOURCE_SWEEP: "sweep",
}
_TOLD = {"rpm": "requests", "tpm": "tokens"}


def check(reservation: pb.Reservation) -> None:
    """Raises invalid_argument naming the field. The tenant may be gone from the fleet meanwhile: it still settles."""
    if not 0 < len(reservation.response_id) <= MAX_ID:
        message = f"must have 1 to {MAX_ID} characters"
        raise HeadraceError("invalid_argument", message, field="reservation.response_id")
    tenant = reservation.identity.tenant
    if not 0 < len(tenant) <= MAX_ID or set(tenant) & set("{}"):
        raise HeadraceError("invalid_argument", "is not the name of a tenant", field="reservation.identity.tenant")
    if not reservation.model:
        raise HeadraceError("invalid_argument", "is missing", field="reservation.model")
    for charge in reservation.charges:
        if charge.limit not in PERIOD_MS or charge.scope not in SCOPES or not 0 <= charge.reserved < NEVER:
            message = f'there is no limit "{charge.limit}" of scope "{charge.scope}"'
            raise HeadraceError("invalid_argument", message, field="reservation.charges")


def caller(reservation: pb.Reservation) -> Caller:
    identity = reservation.identity
    return Caller(identity.tenant, identity.project, identity.key_id, reservation.model)


def declared(reservation: pb.Reservation) -> Declared:
    bounds = reservation.bounds
    return Declared(bounds.num_prompt_tokens, bounds.max_output_tokens, max(1, bounds.n))


def needed(limits: list[Limit], bounds: Declared, prices: Prices) -> Terms:
    """What a new reservation takes of each limit."""
    charges = (
        Charge(limit.name, limit.scope, limit.subject, decide.reserved(limit.name, bounds, prices), limit.rate)
        for limit in limits
    )
    return Terms(tuple(charges), prices)


def carried(reservation: pb.Reservation, book: Book) -> Terms:
    """What a reservation says that it holds; one without charges (granted while Redis was away) is charged as new."""
    who, prices = caller(reservation), book.price(reservation.model)
    limits = book.limits(who)
    if not reservation.charges:
        return needed(limits, declared(reservation), prices)
    rates = {(limit.name, limit.scope): limit.rate for limit in limits}
    charges = (
        Charge(row.limit, row.scope, who.subject(row.scope), row.reserved, rates.get((row.limit, row.scope), 0.0))
        for row in reservation.charges
    )
    return Terms(tuple(charges), prices)


def lost(message: bytes) -> pb.SettleRequest:
    """The provisional settlement of a reservation whose gateway renews it no more."""
    reservation = pb.Reservation.FromString(message)
    return pb.SettleRequest(
        reservation=reservation,
        created=True,
        kind=response_pb2.TERMINAL_KIND_FAILED,
        reason="gateway_lost",
        num_prompt_tokens=reservation.bounds.num_prompt_tokens,
        source=pb.SETTLEMENT_SOURCE_SWEEP,
    )


def held(reservation: pb.Reservation, book: Book) -> Held:
    return Held(reservation.response_id, carried(reservation, book), reservation.SerializeToString())


def stamped(asked: pb.Reservation, at_ms: int, terms: Terms) -> pb.Reservation:
    """The reservation that the gateway keeps."""
    whole = pb.Reservation()
    whole.CopyFrom(asked)
    whole.admitted_at_ms = at_ms
    del whole.charges[:]
    whole.charges.extend(pb.Charge(limit=c.name, scope=c.scope, reserved=c.units) for c in terms.charges)
    return whole


def closing(request: pb.SettleRequest, book: Book, *, only_expired: bool = False) -> Closing:
    """Raises invalid_argument naming the field."""
    if request.source not in _SOURCES:
        raise HeadraceError("invalid_argument", "is missing", field="source")
    if request.created and request.kind not in _KINDS:
        raise HeadraceError("invalid_argument", "a created response ends somehow", field="kind")
    kind = _KINDS[request.kind] if request.created else "released"
    return Closing(
        response_id=request.reservation.response_id,
        source=_SOURCES[request.source],
        kind=kind,
        billed=decide.billed(kind, request.num_prompt_tokens, request.num_cached_tokens, request.num_output_tokens),
        terms=carried(request.reservation, book),
        at_ms=request.reservation.admitted_at_ms,
        message=request.SerializeToString(),
        only_expired=only_expired,
    )


def refusal(limit: Limit, verdict: Verdict, units: float) -> pb.AdmitResponse:
    """Admit's answer when a limit says no."""
    place = f"{limit.name}/{limit.scope}"
    left = max(0.0, limit.capacity - verdict.levels[verdict.refusing])
    message = f"{place}: this request needs {units:g}, {left:g} of {limit.capacity:g} is left"
    if verdict.wait_ms == NEVER:
        message = f"{place}: this request needs {units:g}, more than the whole limit of {limit.capacity:g}"
    wait_ms = 0 if verdict.wait_ms == NEVER else math.ceil(verdict.wait_ms)
    return pb.AdmitResponse(reason=REASONS[limit.name], message=message, limit=place, retry_after_ms=wait_ms)


def rate_limits(limits: list[Limit], levels: tuple[float, ...]) -> list[pb.RateLimit]:
    """What the caller is told: of the limits on requests, and on tokens, the one with the least left."""
    told: dict[str, pb.RateLimit] = {}
    for limit, level in zip(limits, levels, strict=True):
        name = _TOLD.get(limit.name)
        if name is None:
            continue
        reset_ms = math.ceil(level / limit.rate) if limit.rate else 0
        left = max(0.0, limit.capacity - level)
        if name not in told or left < told[name].remaining:
            told[name] = pb.RateLimit(name=name, limit=limit.capacity, remaining=left, reset_ms=reset_ms)
    return list(told.values())


def price(prices: Prices) -> pb.Price:
    return pb.Price(
        prompt_per_million=prices.prompt, cached_per_million=prices.cached, output_per_million=prices.output
    )
