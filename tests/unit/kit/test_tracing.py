"""Trace context as W3C has it, and spans that wait for the verdict on their trace."""

import pytest

from headrace_kit import tracing
from headrace_kit.tracing import Span, Spans, TraceContext
from tests.meters import Moved

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Outlet:
    def __init__(self) -> None:
        self.names: list[str] = []

    def put(self, span: Span) -> None:
        self.names.append(span.name)


def span(name: str, trace_id: str = TRACE, *, sampled: bool = False) -> Span:
    return Span(TraceContext(trace_id, SPAN, sampled), "", name, 1, 2)


@pytest.mark.parametrize("flags, sampled", [("00", False), ("01", True), ("03", True), ("02", False)])
def test_a_valid_traceparent_is_the_parent(flags: str, sampled: bool) -> None:
    assert tracing.parse({"traceparent": f"00-{TRACE}-{SPAN}-{flags}"}) == TraceContext(TRACE, SPAN, sampled)


def test_a_later_version_may_say_more() -> None:
    assert tracing.parse({"traceparent": f"cc-{TRACE}-{SPAN}-01-what-ever"}) == TraceContext(TRACE, SPAN, True)


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
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        "garbage\x00",
        b"00",
    ],
)
def test_an_invalid_traceparent_is_none(value: object) -> None:
    assert tracing.parse({"traceparent": value}) is None


def test_the_state_travels_unless_it_is_not_one() -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    good, bad = (tracing.parse({**headers, "tracestate": state}) for state in ("a=1,b=2", "a=\x01"))
    assert good is not None and good.state == "a=1,b=2" and good.child().state == "a=1,b=2"
    assert bad is not None and bad.state == ""


def test_what_is_injected_continues_the_current_span() -> None:
    assert tracing.inject() == {} and tracing.current() is None
    with tracing.entered(TraceContext(TRACE, SPAN, state="a=1")) as notes:
        assert tracing.inject() == {"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": "a=1"}
        tracing.annotate(verdict="yes")
    assert notes == {"headrace.verdict": "yes"}
    assert tracing.inject() == {}
    tracing.annotate(lost=True)  # outside of a span it says nothing


def test_ids_are_never_zero_and_never_the_same() -> None:
    made = [tracing.root() for _ in range(100)]
    assert len({one.trace_id for one in made}) == 100
    assert all(tracing.parse({"traceparent": one.header}) == one for one in made)


def test_spans_wait_until_their_trace_is_kept() -> None:
    spans, outlet = Spans(), Outlet()
    spans.outlets.append(outlet)
    spans.end(span("admit"))
    spans.end(span("other", "f" * 32))
    assert outlet.names == []
    spans.end(span("settle", sampled=True))
    assert outlet.names == ["admit", "settle"]
    spans.keep("f" * 32)
    spans.keep("e" * 32)
    assert outlet.names == ["admit", "settle", "other"]


def test_what_nobody_asks_for_is_forgotten_oldest_first() -> None:
    spans, outlet = Spans(max_undecided=2), Outlet()
    spans.outlets.append(outlet)
    let_go = Moved("traces_let_go_total")
    for digit in "123":
        spans.end(span(digit, digit * 32))
    assert let_go() == 1
    for digit in "123":
        spans.keep(digit * 32)
    assert outlet.names == ["2", "3"]
