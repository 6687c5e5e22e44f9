"""Sends spans to a collector: OTLP over gRPC. A collector that is slow or away costs spans, never a response."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service_grpc
from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from headrace_kit import telemetry, tracing
from headrace_kit.lifecycle import backoff_s
from headrace_kit.tracing import Link, Span, Value

_BATCH, _MAX_WAITING = 512, 8192
_GATHER_S, _EXPORT_S, _NUM_TRIES = 0.25, 2.0, 3
_KINDS = {tracing.INTERNAL: pb.Span.SPAN_KIND_INTERNAL, tracing.SERVER: pb.Span.SPAN_KIND_SERVER}
_sent = telemetry.counter("spans_exported_total", "Spans that a collector took", ["to"])
_dropped = telemetry.counter("spans_dropped_total", "Spans that no collector took: full, refused", ["to", "why"])


class Exporter:
    """An outlet. `put` only queues; `run` sends for ever; `flush` is for the end of the process."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        resource: Mapping[str, Value],
        to: Literal["controlplane", "collector"],
        max_waiting: int = _MAX_WAITING,
    ) -> None:
        stub: Any = service_grpc.TraceServiceStub
        self._stub = stub(channel)
        self._resource = resource_pb2.Resource(attributes=_attributes(resource))
        self._waiting: deque[Span] = deque()
        self._to, self._max_waiting = to, max_waiting
        self._wake = asyncio.Event()

    def put(self, span: Span) -> None:
        if len(self._waiting) >= self._max_waiting:
            _dropped.labels(self._to, "full").inc()
            return
        self._waiting.append(span)
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(_GATHER_S)
            self._wake.clear()
            while self._waiting:
                await self._send(_NUM_TRIES)

    async def flush(self) -> None:
        while self._waiting and await self._send(1):
            pass

    async def _send(self, num_tries: int) -> bool:
        batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
        request = service_pb.ExportTraceServiceRequest(resource_spans=[to_otlp(self._resource, batch)])
        for attempt in range(num_tries):
            try:
                await self._stub.Export(request, timeout=_EXPORT_S)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(backoff_s(attempt) if attempt + 1 < num_tries else 0.0)
            else:
                _sent.labels(self._to).inc(len(batch))
                return True
        _dropped.labels(self._to, "refused").inc(len(batch))
        return False


def to_otlp(resource: resource_pb2.Resource, spans: list[Span]) -> pb.ResourceSpans:
    scope = pb.ScopeSpans(scope=common.InstrumentationScope(name="headrace"), spans=[_span(one) for one in spans])
    return pb.ResourceSpans(resource=resource, scope_spans=[scope])


def _span(span: Span) -> pb.Span:
    context = span.context
    status = pb.Status(code=pb.Status.STATUS_CODE_ERROR, message=span.error) if span.error else None
    return pb.Span(
        trace_id=bytes.fromhex(context.trace_id),
        span_id=bytes.fromhex(context.span_id),
        parent_span_id=bytes.fromhex(span.parent_id),
        trace_state=context.state,
        name=span.name,
        kind=_KINDS[span.kind],
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=_attributes(span.attributes),
        links=[_link(one) for one in span.links],
        status=status,
    )


def _link(link: Link) -> pb.Span.Link:
    trace_id, span_id = bytes.fromhex(link.trace_id), bytes.fromhex(link.span_id)
    return pb.Span.Link(trace_id=trace_id, span_id=span_id, attributes=_attributes(link.attributes))


def _attributes(attributes: Mapping[str, Value]) -> list[common.KeyValue]:
    return [common.KeyValue(key=key, value=_value(value)) for key, value in attributes.items()]


def _value(value: Value | str) -> common.AnyValue:
    match value:
        case bool():
            return common.AnyValue(bool_value=value)
        case int():
            return common.AnyValue(int_value=value)
        case float():
            return common.AnyValue(double_value=value)
        case list():
            return common.AnyValue(array_value=common.ArrayValue(values=[_value(one) for one in value]))
        case _:
            return common.AnyValue(string_value=str(value))
