"""The control plane's traces: found by response id, bounded, and safe from what is sent."""

from typing import Any

import pytest
from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from headrace_controlplane.trace_receiver import TraceReceiver
from headrace_controlplane.trace_store import MAX_SPAN_BYTES, TraceStore
from headrace_kit import telemetry


def value(name: str) -> float:
    return telemetry.REGISTRY.get_sample_value(name) or 0.0


def attribute(key: str, text: str) -> common.KeyValue:
    return common.KeyValue(key=key, value=common.AnyValue(string_value=text))


def span(
    trace: int, own: int, parent: int = 0, *attributes: common.KeyValue, name: str = "s", start: int = 0
) -> pb.Span:
    return pb.Span(
        trace_id=trace.to_bytes(16, "big"),
        span_id=own.to_bytes(8, "big"),
        parent_span_id=parent.to_bytes(8, "big") if parent else b"",
        name=name,
        start_time_unix_nano=start,
        end_time_unix_nano=start + 5,
        attributes=attributes,
    )


def sent(*spans: pb.Span, service: str = "headrace-gateway") -> list[pb.ResourceSpans]:
    resource = resource_pb2.Resource(attributes=[attribute("service.name", service)])
    return [pb.ResourceSpans(resource=resource, scope_spans=[pb.ScopeSpans(spans=spans)])]


def root(trace: int, own: int, response_id: str) -> pb.Span:
    return span(trace, own, 99, attribute("gen_ai.response.id", response_id), name="chat m")


def test_a_response_is_found_with_all_below_it_in_whatever_order_it_came() -> None:
    store = TraceStore(10, 10**6)
    store.add(sent(span(1, 4, 3, name="decode", start=9), service="headrace-worker"))
    store.add(sent(span(1, 3, 2, name="attempt", start=4)))
    store.add(sent(root(1, 2, "resp_1")))
    found = store.find("resp_1")
    assert found is not None and found.trace_id == f"{1:032x}"
    told = [(one.name, one.service, one.parent_id, one.start_ns) for one in found.spans]
    assert told == [
        ("chat m", "headrace-gateway", f"{99:016x}", 0),
        ("attempt", "headrace-gateway", f"{2:016x}", 4),
        ("decode", "headrace-worker", f"{3:016x}", 9),
    ]
    assert store.find("resp_2") is None


def test_a_clients_trace_of_many_responses_is_many_parts() -> None:
    store = TraceStore(10, 10**6)
    store.add(sent(root(1, 2, "resp_1"), span(1, 3, 2), root(1, 5, "resp_2"), span(1, 6, 5), span(1, 7, 6)))
    for response_id, ids in (("resp_1", {2, 3}), ("resp_2", {5, 6, 7})):
        found = store.find(response_id)
        assert found is not None and {int(one.span_id, 16) for one in found.spans} == ids


def test_attributes_links_and_errors_are_told_as_text() -> None:
    store = TraceStore(10, 10**6)
    made = root(1, 2, "resp_2")
    values: dict[str, Any] = {"bool_value": True, "int_value": 7, "double_value": 0.25}
    made.attributes.extend(common.KeyValue(key=k, value=common.AnyValue(**{k: v})) for k, v in values.items())
    array = common.ArrayValue(values=[common.AnyValue(string_value="a"), common.AnyValue(int_value=1)])
    made.attributes.append(common.KeyValue(key="list", value=common.AnyValue(array_value=array)))
    made.links.append(pb.Span.Link(attributes=[attribute("headrace.retry_of", "resp_1")]))
    made.status.code, made.status.message = pb.Status.STATUS_CODE_ERROR, "worker_lost"
    store.add(sent(made))
    found = store.find("resp_2")
    assert found is not None
    told = found.spans[0]
    assert (told.error, list(told.links)) == ("worker_lost", ["resp_1"])
    assert dict(told.attributes) == {
        "gen_ai.response.id": "resp_2",
        "bool_value": "true",
        "int_value": "7",
        "double_value": "0.25",
        "list": "a, 1",
    }


def test_the_oldest_go_when_there_are_too_many_or_they_are_too_big() -> None:
    store = TraceStore(3, 10**6)
    for number in range(1, 6):
        store.add(sent(root(number, 2, f"resp_{number}")))
    assert len(store) == 3 == value("traces_stored")
    assert [store.find(f"resp_{number}") is not None for number in range(1, 6)] == [False, False, True, True, True]
    one = root(1, 2, "resp_1").ByteSize()
    small = TraceStore(100, 2 * one + 1)
    for number in range(1, 5):
        small.add(sent(root(number, 2, f"resp_{number}")))
    assert len(small) == 2 and value("traces_stored_bytes") <= 2 * one + 1


@pytest.mark.parametrize(
    "bad",
    [
        pb.Span(trace_id=b"short", span_id=b"12345678"),
        pb.Span(trace_id=b"1" * 16, span_id=b""),
        pb.Span(trace_id=b"1" * 16, span_id=b"12345678", name="x" * MAX_SPAN_BYTES),
    ],
)
async def test_what_is_not_valid_is_refused_and_told(bad: pb.Span) -> None:
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    store = TraceStore(10, 10**6)
    before = value("trace_spans_received_total"), value("trace_spans_refused_total")
    request = trace_service_pb2.ExportTraceServiceRequest(resource_spans=sent(bad, root(2, 2, "resp_ok")))
    answer = await TraceReceiver(store).Export(request, None)
    assert answer.partial_success.rejected_spans == 1 and store.find("resp_ok") is not None
    after = value("trace_spans_received_total"), value("trace_spans_refused_total")
    assert after == (before[0] + 1, before[1] + 1)


def test_a_trace_without_end_is_cut_off() -> None:
    store = TraceStore(10, 10**9)
    store.add(sent(*(span(1, number) for number in range(1, 4097))))
    assert store.add(sent(span(1, 5000))) == 1
