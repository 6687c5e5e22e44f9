"""The spans of one attempt, from the timings that its finals carry. Made only when the gateway keeps the trace.

Names of attributes are `headrace.` but for the GenAI conventions' own. Knows neither exporter nor engine.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.v1 import worker_pb2
from headrace_kit import tracing
from headrace_kit.tracing import Span, TraceContext, Value
from headrace_worker.attempts import Attempt
from headrace_worker.replica import Replica

_FAILED = worker_pb2.FINAL_KIND_FAILED


def spans_of(attempt: Attempt, replica: Replica) -> Iterator[Span]:
    """queue, prefill, decode: as far as the attempt came. Nothing for one that came without a trace context."""
    parent = tracing.parse({"traceparent": attempt.submit.traceparent})
    if parent is None or not attempt.finals:
        return
    first, slowest = attempt.finals[0], max(attempt.finals, key=lambda final: final.decode_ms)
    error = next((final.reason for final in attempt.finals if final.kind == _FAILED), "")
    about: dict[str, Value] = {
        "headrace.attempt": attempt.submit.attempt,
        "headrace.replica": replica.replica_id,
        "headrace.replica_epoch": attempt.submit.replica_epoch,
        "headrace.snapshot_version": attempt.submit.snapshot_version,
    }
    accepted_ns = attempt.submitted_ns + round(first.queue_ms * 1e6)
    begun = any(final.num_generated_tokens for final in attempt.finals)
    if first.prefill_ms or first.decode_ms:
        token_ns = accepted_ns + round(first.prefill_ms * 1e6)
        ended_ns = token_ns + round(slowest.decode_ms * 1e6)
    else:  # the engine could not say when: what is known is when it was lost
        token_ns, ended_ns = (accepted_ns if begun else attempt.ended_ns), attempt.ended_ns
    yield _span(parent, "queue", attempt.submitted_ns, accepted_ns, about | _queue(attempt))
    prefilled = about | _prefill(attempt, first, replica)
    yield _span(parent, "prefill", accepted_ns, token_ns, prefilled, "" if begun else error)
    if begun:
        yield _span(parent, "decode", token_ns, max(token_ns, ended_ns), about | _decode(attempt, slowest), error)


def _queue(attempt: Attempt) -> dict[str, Value]:
    return {
        "headrace.slo_class": attempt.submit.slo_class,
        "headrace.queue_deadline_s": attempt.submit.queue_deadline_ms / 1000,
        "headrace.num_waiting_before": attempt.num_waiting_before,
    }


def _prefill(attempt: Attempt, first: worker_pb2.Final, replica: Replica) -> dict[str, Value]:
    return {
        "headrace.num_prompt_tokens": first.num_prompt_tokens,
        "headrace.num_cached_tokens": first.num_cached_tokens,
        "headrace.num_chunks": max((notes.num_chunks for notes in attempt.notes.values()), default=0),
        "headrace.num_promised_pages": first.num_promised_pages,
        "headrace.reservation_bytes": first.num_promised_pages * replica.page_bytes,
        "headrace.pool_pressure": round(attempt.pool_pressure, 4),
    }


def _decode(attempt: Attempt, slowest: worker_pb2.Final) -> dict[str, Value]:
    notes = attempt.notes.get(slowest.choice)
    told: dict[str, Value] = {
        "gen_ai.usage.output_tokens": sum(final.num_generated_tokens for final in attempt.finals),
        "headrace.num_choices": attempt.submit.n,
        "headrace.worst_gap_s": max(final.worst_gap_ms for final in attempt.finals) / 1000,
        "headrace.device_s": sum(final.device_us for final in attempt.finals) / 1e6,
        "headrace.num_used_pages": slowest.num_used_pages,
        "headrace.finish_reason": slowest.reason,
    }
    if notes is not None:
        told["headrace.batch_p50"], told["headrace.batch_p95"] = notes.occupancy_p50, notes.occupancy_p95
        told["headrace.collective_s"] = notes.collective_s
    if attempt.binding is not None:
        told["headrace.binding_resource"], told["headrace.binding_share"] = attempt.binding
    return told


def _span(
    parent: TraceContext, name: str, start_ns: int, end_ns: int, attributes: dict[str, Value], error: str = ""
) -> Span:
    context = parent.child()._replace(sampled=True)
    return Span(context, parent.span_id, name, start_ns, end_ns, attributes=attributes, error=error)
