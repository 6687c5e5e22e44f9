"""What a settlement says about device time: one Work per attempt and part. Knows no segment and no price."""

from collections.abc import Iterable, Iterator

from headrace.v1 import policy_pb2, response_pb2
from headrace_controlplane.cost import Part, Work

_PARTS: dict[int, Part] = {
    response_pb2.TERMINAL_KIND_COMPLETED: "useful",
    response_pb2.TERMINAL_KIND_INCOMPLETE: "useful",
    response_pb2.TERMINAL_KIND_CANCELLED: "cancelled",
}
_GAVE_UP = {"client", "disconnect", "slow_client"}


def works(rows: Iterable[policy_pb2.UsageRow]) -> Iterator[Work]:
    """Of each response its last word: a correction replaces what it corrects.

    An attempt of a lost response that was closed beside its settlement counts unless that names it too.
    """
    listed = list(rows)
    last = {row.settlement.reservation.response_id: row for row in listed}
    for row in last.values():
        whole = last.get(row.settlement.attempt_of)
        named = {attempt.attempt for attempt in whole.settlement.attempts} if whole is not None else set()
        if not named & {attempt.attempt for attempt in row.settlement.attempts}:
            yield from _of(row)


def _of(row: policy_pb2.UsageRow) -> Iterator[Work]:
    settled = row.settlement
    for number, attempt in enumerate(settled.attempts, start=1):
        part = _part(settled)
        if number < len(settled.attempts):
            yield _work(row, attempt, "recompute", attempt.device_us, attempt.num_generated_tokens)
        elif part == "useful" and settled.num_withheld_tokens:
            yield from _shared(row, attempt)
        else:
            yield _work(row, attempt, part, attempt.device_us, attempt.num_generated_tokens)


def _part(settled: policy_pb2.SettleRequest) -> Part:
    """Useful is what ended well or by its own limit: an answer that a content rule ended is withheld, all of it."""
    if not settled.created:
        return "cancelled" if settled.reason in _GAVE_UP else "failed"
    part = _PARTS.get(settled.kind, "failed")
    return "withheld" if part == "useful" and settled.reason == "content_filter" else part


def _shared(row: policy_pb2.UsageRow, attempt: policy_pb2.AttemptUsage) -> Iterator[Work]:
    """A content rule kept back some of an answer that went on: those tokens take their share of the time."""
    generated = max(attempt.num_generated_tokens, 1)
    withheld = min(row.settlement.num_withheld_tokens, generated)
    withheld_us = attempt.device_us * withheld // generated
    yield _work(row, attempt, "withheld", withheld_us, withheld)
    yield _work(row, attempt, "useful", attempt.device_us - withheld_us, generated - withheld)


def _work(
    row: policy_pb2.UsageRow, attempt: policy_pb2.AttemptUsage, part: Part, busy_us: int, num_tokens: int
) -> Work:
    reservation = row.settlement.reservation
    return Work(
        replica_id=attempt.replica.id,
        epoch=attempt.replica.epoch,
        settled_at_ms=row.settled_at_ms,
        model=reservation.model,
        tenant=reservation.identity.tenant,
        slo_class=reservation.identity.slo_class,
        part=part,
        busy_us=busy_us,
        num_tokens=num_tokens,
    )
