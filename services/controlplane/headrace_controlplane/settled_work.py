"""What a settlement says about device time: one Work per attempt, replica and part. Knows no segment and no price."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.v1 import policy_pb2, response_pb2
from headrace_controlplane.cost import Part, Work

_PARTS: dict[int, Part] = {
    response_pb2.TERMINAL_KIND_COMPLETED: "useful",
    response_pb2.TERMINAL_KIND_INCOMPLETE: "useful",
    response_pb2.TERMINAL_KIND_CANCELLED: "cancelled",
}
_GAVE_UP = {"client", "disconnect", "slow_client"}


class _Did(NamedTuple):
    """What one replica did for an attempt."""

    replica: response_pb2.ReplicaRef
    busy_us: int
    num_tokens: int


def works(rows: Iterable[policy_pb2.UsageRow]) -> Iterator[Work]:
    """Of each response its last word: a correction replaces what it corrects.

    What was closed beside it counts too: device time that its gateway heard of late, and an attempt of a lost gateway's
    response, unless the settlement names that.
    """
    last = {row.settlement.reservation.response_id: row for row in rows}
    for row in last.values():
        whole = last.get(row.settlement.attempt_of, row)
        if whole is row or row.settlement.source == policy_pb2.SETTLEMENT_SOURCE_OWNER or not _names(whole, row):
            yield from _of(row, whole.settlement)


def _names(whole: policy_pb2.UsageRow, part: policy_pb2.UsageRow) -> bool:
    named = {attempt.attempt for attempt in whole.settlement.attempts}
    return any(attempt.attempt in named for attempt in part.settlement.attempts)


def _of(row: policy_pb2.UsageRow, whole: policy_pb2.SettleRequest) -> Iterator[Work]:
    settled = row.settlement
    for place, attempt in enumerate(settled.attempts, start=1):
        number = attempt.attempt or place
        part: Part = "recompute" if number < len(whole.attempts) else _part(whole)
        for did in _replicas(attempt):
            if part == "useful" and settled.num_withheld_tokens:
                yield from _shared(row, did, max(attempt.num_generated_tokens, 1))
            else:
                yield _work(row, did, part)


def _replicas(attempt: policy_pb2.AttemptUsage) -> Iterator[_Did]:
    """The one that answered, and the one that computed the prompt for it."""
    yield _Did(attempt.replica, attempt.device_us, attempt.num_generated_tokens)
    if attempt.HasField("prefill"):
        yield _Did(attempt.prefill, attempt.prefill_device_us, 0)


def _part(settled: policy_pb2.SettleRequest) -> Part:
    """Useful is what ended well or by its own limit: an answer that a content rule ended is withheld, all of it.

    What was never created has no kind; what was told of late has its response's, whose own row may be out of reach.
    """
    part = _PARTS.get(settled.kind)
    if part is None:
        return "cancelled" if not settled.created and settled.reason in _GAVE_UP else "failed"
    return "withheld" if part == "useful" and settled.reason == "content_filter" else part


def _shared(row: policy_pb2.UsageRow, did: _Did, num_generated: int) -> Iterator[Work]:
    """A content rule kept back some of an answer that went on: those tokens take their share of the time."""
    num_withheld = min(row.settlement.num_withheld_tokens, num_generated)
    withheld_us, withheld = did.busy_us * num_withheld // num_generated, min(num_withheld, did.num_tokens)
    yield _work(row, _Did(did.replica, withheld_us, withheld), "withheld")
    yield _work(row, _Did(did.replica, did.busy_us - withheld_us, did.num_tokens - withheld), "useful")


def _work(row: policy_pb2.UsageRow, did: _Did, part: Part) -> Work:
    reservation = row.settlement.reservation
    return Work(
        replica_id=did.replica.id,
        epoch=did.replica.epoch,
        settled_at_ms=row.settled_at_ms,
        model=reservation.model,
        tenant=reservation.identity.tenant,
        slo_class=reservation.identity.slo_class,
        part=part,
        busy_us=did.busy_us,
        num_tokens=did.num_tokens,
    )
