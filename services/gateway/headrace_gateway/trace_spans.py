"""The spans of a response that is kept, from its times and its facts. Pure but for the ids it makes.

Names of attributes: the GenAI semantic conventions of OpenTelemetry where they have one, else `headrace.`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.v1 import inference_pb2, response_pb2
from headrace_gateway.lifecycle import outputs
from headrace_gateway.prepared import Prepared
from headrace_gateway.trace import DECODE, AttemptTimes, ResponseTimes, Trace
from headrace_kit.tracing import INTERNAL, SERVER, Link, Span, TraceContext, Value


@dataclass(frozen=True, slots=True)
class Facts:
    """What one response was and how it ended. `broken` names the budget that was broken, `phase` who broke it."""

    response_id: str
    prepared: Prepared
    snapshot_version: int
    ending: outputs.Terminal | outputs.Refusal
    ttft_s: float | None
    worst_gap_s: float
    num_deltas: int
    broken: str = ""
    phase: str = ""
    retried: TraceContext | None = None

    @property
    def kind(self) -> str:
        return self.ending.kind if isinstance(self.ending, outputs.Terminal) else "refused"

    @property
    def error(self) -> str:
        return "" if self.kind in ("completed", "incomplete") else self.ending.reason


def spans_of(trace: Trace, facts: Facts) -> list[Span]:
    """Children first, the response's own span last."""
    return [*_Writer(trace, facts).children(), _root(trace, facts)]


class _Writer:
    def __init__(self, trace: Trace, facts: Facts) -> None:
        self._trace, self._facts, self._times = trace, facts, trace.times
        self._end = _or(self._times.ended_at, self._times.settled_at, self._times.arrival.at)

    def children(self) -> Iterator[Span]:
        times = self._times
        yield self._span(times.gate, "gate", times.arrival.at, times.admitted_at, _gate(times), self._gate_error())
        for attempt in times.attempts:
            yield from self._attempt(attempt)
        if times.settling_at is not None:
            cost: dict[str, Value] = {} if times.cost is None else {"headrace.cost": times.cost}
            yield self._span(times.settle, "settle", times.settling_at, times.settled_at, cost)
        if isinstance(self._facts.ending, outputs.Terminal) and times.settled_at is not None:
            facts: dict[str, Value] = {"headrace.num_deltas": self._facts.num_deltas}
            facts["headrace.worst_gap_s"] = self._facts.worst_gap_s
            yield self._span(self._trace.root.child(), "deliver", times.settled_at, self._end, facts)

    def _attempt(self, attempt: AttemptTimes) -> Iterator[Span]:
        number: dict[str, Value] = {"headrace.attempt": attempt.number}
        error = "" if attempt.answer is not None else self._facts.error or "no_replica"
        routed_at = _or(attempt.routed_at, attempt.ended_at, self._end)
        yield self._span(attempt.route, "route", attempt.routing_at, routed_at, number | _route(attempt), error)
        if attempt.answer is None:
            return
        failed = attempt.outcome if attempt.outcome in ("refused", "failed", "lost") else ""
        about = number | {"headrace.replica": attempt.answer.replica.id, "headrace.outcome": attempt.outcome}
        ended_at = _or(attempt.ended_at, self._end)
        yield self._span(attempt.span, "attempt", routed_at, ended_at, about, failed and attempt.reason)
        if attempt.final is None:
            yield from self._seen_from_here(attempt, routed_at, ended_at)

    def _seen_from_here(self, attempt: AttemptTimes, routed_at: float, ended_at: float) -> Iterator[Span]:
        """Phases of an attempt whose worker said nothing of its end; the last one carries the reason."""
        attempt.is_told = True
        marks = [("queue", routed_at)]
        if attempt.accepted_at is not None:
            marks.append(("prefill", attempt.accepted_at))
        first_at = self._times.first_text_at
        if attempt.phase == DECODE and first_at is not None and attempt.accepted_at is not None:
            marks.append((DECODE, max(first_at, attempt.accepted_at)))
        ends = [at for _, at in marks[1:]] + [ended_at]
        for (name, at), end in zip(marks, ends, strict=True):
            about: dict[str, Value] = {"headrace.attempt": attempt.number, "headrace.observed_by": "gateway"}
            error = attempt.reason if end == ended_at and attempt.outcome != "cancelled" else ""
            yield self._span(attempt.span.child(), name, at, end, about, error, parent_id=attempt.span.span_id)

    def _gate_error(self) -> str:
        return self._facts.error if not self._times.attempts else ""

    def _span(
        self,
        context: TraceContext,
        name: str,
        start: float | None,
        end: float | None,
        attributes: dict[str, Value],
        error: str = "",
        *,
        parent_id: str = "",
    ) -> Span:
        start = self._times.arrival.at if start is None else start
        end = max(start, self._end if end is None else end)
        own = context._replace(sampled=True)
        parent_id = parent_id or self._trace.root.span_id
        return Span(own, parent_id, name, self._ns(start), self._ns(end), INTERNAL, attributes, error=error)

    def _ns(self, at: float) -> int:
        return self._trace.wall_ns + round((at - self._times.arrival.at) * 1e9)


def _root(trace: Trace, facts: Facts) -> Span:
    times, prepared = trace.times, facts.prepared
    operation = "chat" if prepared.request.WhichOneof("input") == "chat" else "text_completion"
    end_ns = trace.wall_ns + round((_or(times.ended_at, times.settled_at) - times.arrival.at) * 1e9)
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": prepared.request.model,
        "gen_ai.response.model": prepared.model.name,
        "gen_ai.response.id": facts.response_id,
        **_request(prepared.request, prepared.bounds),
        "headrace.tenant": prepared.identity.tenant,
        "headrace.slo_class": prepared.slo_class,
        "headrace.snapshot_version": facts.snapshot_version,
        "headrace.terminal": facts.kind,
        "headrace.num_attempts": len(times.attempts),
        "headrace.worst_gap_s": facts.worst_gap_s,
    }
    if isinstance(facts.ending, outputs.Terminal):
        usage = facts.ending.usage
        attributes["gen_ai.response.finish_reasons"] = [facts.ending.reason]
        attributes["gen_ai.usage.input_tokens"] = usage.num_prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = usage.num_output_tokens
        attributes["gen_ai.usage.cache_read.input_tokens"] = usage.num_cached_tokens
    optional: dict[str, Value | None] = {
        "error.type": facts.error,
        "headrace.cost": times.cost,
        "headrace.ttft_s": facts.ttft_s,
        "headrace.slo.broken": facts.broken,
        "headrace.slo.phase": facts.phase,
        "headrace.ttft_infeasible": any(a.answer is not None and a.answer.ttft_infeasible for a in times.attempts),
        "headrace.retry_of": prepared.request.retry_of,
    }
    # A cost of 0 is one: `0 in (None, "", False)` is true.
    attributes |= {name: value for name, value in optional.items() if value not in (None, "") and value is not False}
    span = Span(trace.root._replace(sampled=True), times.arrival.parent_id, "", trace.wall_ns, end_ns, SERVER)
    span.name, span.attributes, span.error = f"{operation} {prepared.model.name}", attributes, facts.error
    if facts.retried is not None:
        about: dict[str, Value] = {"headrace.retry_of": prepared.request.retry_of}
        span.links = (Link(facts.retried.trace_id, facts.retried.span_id, about),)
    return span


def _request(request: inference_pb2.GenerateRequest, bounds: response_pb2.Bounds) -> dict[str, Value]:
    asked: dict[str, Value] = {"gen_ai.request.max_tokens": bounds.max_output_tokens}
    if bounds.n > 1:
        asked["gen_ai.request.choice.count"] = bounds.n
    if request.stop:
        asked["gen_ai.request.stop_sequences"] = list(request.stop)
    sampling = request.sampling
    for name in ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty"):
        if sampling.HasField(name):
            asked[f"gen_ai.request.{name}"] = getattr(sampling, name)
    return asked


def _gate(times: ResponseTimes) -> dict[str, Value]:
    """Where the gate's time went; policy's own span says more of the last part."""
    parts: dict[str, Value] = {}
    at = times.arrival.at
    for name, until in (("auth", times.authenticated_at), ("prepare", times.prepared_at), ("admit", times.admitted_at)):
        if until is not None:
            parts[f"headrace.{name}_s"] = round(until - at, 6)
            at = until
    return parts


def _route(attempt: AttemptTimes) -> dict[str, Value]:
    answer = attempt.answer
    if answer is None:
        return {}
    return {
        "headrace.decision": answer.decision_id,
        "headrace.why": answer.why,
        "headrace.replica": answer.replica.id,
        "headrace.replica_epoch": answer.replica.epoch,
        "headrace.warm": "started for it" if answer.held_ms else "ready",
        "headrace.held_s": answer.held_ms / 1000,
        "headrace.predicted_prefill_s": answer.predicted_prefill_ms / 1000,
        "headrace.num_predicted_hit_tokens": answer.num_predicted_hit_tokens,
        "headrace.queue_deadline_s": answer.queue_deadline_ms / 1000,
    }


def _or(*points: float | None) -> float:
    return next(point for point in points if point is not None)
