"""The last traces, in bounded memory: spans as they came, by trace; a response is found by the id on its own span.

Knows OTLP's messages and no connection. A client may use one trace for many responses: each is its own part of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from headrace.v1 import fleet_pb2
from headrace_kit import telemetry

RESPONSE_ID, RETRY_OF = "gen_ai.response.id", "headrace.retry_of"
MAX_SPAN_BYTES, MAX_SPANS = 64 * 1024, 4096
_received = telemetry.counter("trace_spans_received_total", "Spans that this collector took")
_refused = telemetry.counter("trace_spans_refused_total", "Spans that are not valid, or over a bound")
_stored = telemetry.gauge("traces_stored", "Traces that can be shown")
_stored_bytes = telemetry.gauge("traces_stored_bytes", "What they take")


@dataclass(slots=True)
class _Stored:
    """Spans of one trace, serialized, with the service of each, and its responses by span id."""

    spans: list[tuple[str, bytes]] = field(default_factory=list)
    responses: dict[str, str] = field(default_factory=dict)
    num_bytes: int = 0


class TraceStore:
    """At most `max_traces` and `max_bytes`; the trace that was heard of longest ago goes first."""

    def __init__(self, max_traces: int, max_bytes: int) -> None:
        self._max_traces, self._max_bytes = max_traces, max_bytes
        self._traces: OrderedDict[bytes, _Stored] = OrderedDict()
        self._by_response: dict[str, tuple[bytes, bytes]] = {}
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._traces)

    def add(self, resources: Iterable[pb.ResourceSpans]) -> int:
        """Returns how many spans were refused."""
        num_refused = 0
        for resource in resources:
            service = _text(resource.resource.attributes, "service.name")
            for scope in resource.scope_spans:
                num_refused += sum(not self._add(service, span) for span in scope.spans)
        while len(self._traces) > self._max_traces or self._num_bytes > self._max_bytes:
            self._drop_oldest()
        _refused.inc(num_refused)
        _stored.set(len(self._traces))
        _stored_bytes.set(self._num_bytes)
        return num_refused

    def find(self, response_id: str) -> fleet_pb2.Trace | None:
        """The response's own span and all below it, by start."""
        place = self._by_response.get(response_id)
        if place is None:
            return None
        trace_id, root_id = place
        stored = self._traces[trace_id]
        spans = [(service, pb.Span.FromString(raw)) for service, raw in stored.spans]
        below = _below(root_id, [span for _, span in spans])
        told = [_told(service, span) for service, span in spans if span.span_id in below]
        told.sort(key=lambda span: (span.start_ns, span.end_ns))
        return fleet_pb2.Trace(trace_id=trace_id.hex(), spans=told)

    def _add(self, service: str, span: pb.Span) -> bool:
        raw = span.SerializeToString()
        valid = len(span.trace_id) == 16 and len(span.span_id) == 8 and len(raw) <= MAX_SPAN_BYTES
        stored = self._traces.get(span.trace_id)
        if not valid or (stored is not None and len(stored.spans) >= MAX_SPANS):
            return False
        if stored is None:
            stored = self._traces[span.trace_id] = _Stored()
        self._traces.move_to_end(span.trace_id)
        stored.spans.append((service, raw))
        stored.num_bytes += len(raw)
        self._num_bytes += len(raw)
        if response_id := _text(span.attributes, RESPONSE_ID):
            stored.responses[response_id] = span.span_id.hex()
            self._by_response[response_id] = span.trace_id, span.span_id
        _received.inc()
        return True

    def _drop_oldest(self) -> None:
        _, stored = self._traces.popitem(last=False)
        self._num_bytes -= stored.num_bytes
        for response_id in stored.responses:
            self._by_response.pop(response_id, None)


def _below(root_id: bytes, spans: list[pb.Span]) -> set[bytes]:
    """Ids of the span and its descendants, in whatever order they came."""
    children: dict[bytes, list[bytes]] = {}
    for span in spans:
        children.setdefault(span.parent_span_id, []).append(span.span_id)
    found, waiting = {root_id}, [root_id]
    while waiting:
        new = [each for each in children.get(waiting.pop(), ()) if each not in found]
        found.update(new)
        waiting.extend(new)
    return found


def _told(service: str, span: pb.Span) -> fleet_pb2.Span:
    attributes = {one.key: _as_text(one.value) for one in span.attributes}
    links = [_text(link.attributes, RETRY_OF) for link in span.links]
    retried = attributes.get(RETRY_OF, "")
    return fleet_pb2.Span(
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        service=service,
        name=span.name,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=attributes,
        links=list(dict.fromkeys(one for one in (*links, retried) if one)),
        error=span.status.message if span.status.code == pb.Status.STATUS_CODE_ERROR else "",
    )


def _text(attributes: Iterable[common_pb2.KeyValue], key: str) -> str:
    return next((one.value.string_value for one in attributes if one.key == key), "")


def _as_text(value: common_pb2.AnyValue) -> str:
    match value.WhichOneof("value"):
        case "bool_value":
            return "true" if value.bool_value else "false"
        case "int_value":
            return str(value.int_value)
        case "double_value":
            return f"{value.double_value:.9g}"
        case "array_value":
            return ", ".join(_values(value))
        case _:
            return value.string_value


def _values(value: common_pb2.AnyValue) -> Iterator[str]:
    yield from (_as_text(one) for one in value.array_value.values)
