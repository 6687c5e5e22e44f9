"""Spans reach a collector in OTLP's form; one that is slow or away costs spans and nothing else."""

import asyncio
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from headrace_kit import telemetry
from headrace_kit.channels import connect
from headrace_kit.otlp import Exporter
from headrace_kit.tracing import SERVER, Link, Span, TraceContext

TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.wait = asyncio.Event()
        self.wait.set()
        self.got = asyncio.Event()

    async def Export(self, request: Any, context: Any) -> Any:
        await self.wait.wait()
        self.requests.append(request)
        self.got.set()
        return trace_service_pb2.ExportTraceServiceResponse()


async def served(collector: Collector) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


def span(name: str = "decode") -> Span:
    made = Span(TraceContext(TRACE, SPAN, True, "a=1"), PARENT, name, 5, 9, SERVER, {"s": "x", "n": 3, "b": True})
    made.attributes |= {"f": 0.5, "l": ["p", "q"]}
    made.links, made.error = (Link(TRACE, PARENT, {"headrace.retry_of": "resp_1"}),), "worker_lost"
    return made


def dropped(why: str) -> float:
    return telemetry.REGISTRY.get_sample_value("spans_dropped_total", {"to": "collector", "why": why}) or 0.0


async def test_a_span_arrives_whole() -> None:
    collector = Collector()
    server, target = await served(collector)
    channel = connect(target, token=None)
    exporter = Exporter(channel, {"service.name": "headrace-test"}, "collector")
    before = telemetry.REGISTRY.get_sample_value("spans_exported_total", {"to": "collector"}) or 0.0
    exporter.put(span())
    running = asyncio.create_task(exporter.run())
    async with asyncio.timeout(10):
        await collector.got.wait()
        while (telemetry.REGISTRY.get_sample_value("spans_exported_total", {"to": "collector"}) or 0.0) == before:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0)
    running.cancel()
    [resource] = collector.requests[0].resource_spans
    assert resource.resource.attributes[0].value.string_value == "headrace-test"
    [got] = resource.scope_spans[0].spans
    ids = (got.trace_id.hex(), got.span_id.hex(), got.parent_span_id.hex(), got.trace_state)
    assert ids == (TRACE, SPAN, PARENT, "a=1")
    assert (got.name, got.kind, got.start_time_unix_nano, got.end_time_unix_nano) == ("decode", 2, 5, 9)
    values = {one.key: one.value for one in got.attributes}
    assert (values["s"].string_value, values["n"].int_value, values["b"].bool_value) == ("x", 3, True)
    assert values["f"].double_value == 0.5
    assert [one.string_value for one in values["l"].array_value.values] == ["p", "q"]
    assert (got.status.code, got.status.message) == (2, "worker_lost")
    assert got.links[0].span_id.hex() == PARENT
    assert telemetry.REGISTRY.get_sample_value("spans_exported_total", {"to": "collector"}) == before + 1
    await channel.close()
    await server.stop(None)


async def test_a_full_queue_drops_and_counts_and_never_waits() -> None:
    channel = connect("127.0.0.1:1", token=None)
    exporter = Exporter(channel, {}, "collector", max_waiting=3)
    before = dropped("full")
    for _ in range(10):
        exporter.put(span())
    assert dropped("full") == before + 7
    await channel.close()


async def test_a_collector_that_is_away_costs_its_spans() -> None:
    channel = connect("127.0.0.1:1", token=None)
    exporter = Exporter(channel, {}, "collector")
    before = dropped("refused")
    exporter.put(span())
    exporter.put(span())
    async with asyncio.timeout(10):
        await exporter.flush()
    assert dropped("refused") == before + 2
    await channel.close()
