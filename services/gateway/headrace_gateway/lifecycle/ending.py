"""How a response ends: the last outputs, in their order. Settlement always comes before what the client reads.

Appends to a list of outputs that its caller owns. Does not decide when.
"""

from __future__ import annotations

from . import books
from .attempt import Attempt
from .books import Verdict
from .outputs import Output, Refusal, Settle
from .placement import Placement
from .stream import Stream
from .terms import Terms

MOVABLE = frozenset({"worker_lost", "replica_draining", "prefill_lost", "kv_expired"})
"""Failures of a replica that another replica may repair, before the first delta."""
NEUTRAL = frozenset({"policy_lost", "decode_error", "deadline", "internal", "gateway_lost"})
"""Failures that are not the replica's."""


def write_refusal(terms: Terms, placement: Placement, refusal: Refusal, out: list[Output]) -> None:
    """The ending before `created`: whatever policy may have reserved is released first."""
    current = placement.current
    if current is not None:
        placement.cancel(current, "client" if refusal.reason == "client" else "deadline", out)
        placement.report(current, "cancelled", refusal.reason, out)
    verdict = Verdict("refused", refusal.reason)
    out.append(Settle(books.settlement(terms, placement.attempts, verdict, created=False)))
    placement.acknowledge(out)
    out.append(refusal)


def write_terminal(terms: Terms, placement: Placement, stream: Stream, verdict: Verdict, out: list[Output]) -> None:
    """The ending after `created`: nothing follows but late reports and acknowledgements."""
    current = placement.attempts[-1]
    if verdict.reason == "content_filter":
        for choice in current.choices:
            if not choice.finished:
                stream.finish(choice, "content_filter", out)
    placement.report(current, _outcome(verdict, current), verdict.reason, out)
    out.append(Settle(books.settlement(terms, placement.attempts, verdict, created=True)))
    placement.acknowledge(out)
    stream.end((verdict.kind, verdict.reason, verdict.detail), books.usage(terms, current), out)


def _outcome(verdict: Verdict, attempt: Attempt) -> str:
    """What the router is told of the attempt that ended with the response."""
    if attempt.lost or verdict.reason in MOVABLE:
        return "lost"
    return "cancelled" if verdict.reason in NEUTRAL else verdict.kind
