import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from headrace_kit import telemetry

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_valid_traceparent_is_the_parent() -> None:
    context = telemetry.extract({"traceparent": f"00-{TRACE}-{SPAN}-01", "other": "x"})
    parent = trace.get_current_span(context).get_span_context()
    assert (format(parent.trace_id, "032x"), format(parent.span_id, "016x"), parent.is_remote) == (TRACE, SPAN, True)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE[:30]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        "garbage\x00",
    ],
)
def test_an_invalid_traceparent_gives_a_new_root(value: str) -> None:
    context = telemetry.extract({"traceparent": value})
    assert not trace.get_current_span(context).get_span_context().is_valid
    with TracerProvider().get_tracer("t").start_as_current_span("root", context):
        assert telemetry.trace_id() not in (None, TRACE, "0" * 32)


def test_what_is_injected_continues_the_current_span() -> None:
    with TracerProvider().get_tracer("t").start_as_current_span("one") as span:
        headers = telemetry.inject()
        parent = trace.get_current_span(telemetry.extract(headers)).get_span_context()
        assert parent.span_id == span.get_span_context().span_id
        assert format(parent.trace_id, "032x") == telemetry.trace_id()
    assert telemetry.inject() == {} and telemetry.trace_id() is None


def test_latency_buckets_tell_the_objective_apart() -> None:
    histogram = telemetry.histogram("kit_test_seconds", "of this test")
    for value in (0.65, 0.75, 480.0, 0.02, 0.08):
        histogram.observe(value)
    counts = {
        edge: telemetry.REGISTRY.get_sample_value("kit_test_seconds_bucket", {"le": edge})
        for edge in ("0.02", "0.1", "0.7", "1.0", "300.0", "600.0")
    }
    assert counts == {"0.02": 1, "0.1": 2, "0.7": 3, "1.0": 4, "300.0": 4, "600.0": 5}
