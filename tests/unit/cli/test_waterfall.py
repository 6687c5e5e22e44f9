"""A trace as lines of text, and the one sentence that says what broke the budget."""

from headrace.v1 import fleet_pb2 as pb
from headrace_cli import waterfall

MS = 10**6


def span(own: str, parent: str, name: str, start: int, end: int, **attributes: str) -> pb.Span:
    told = {key.replace("__", "."): value for key, value in attributes.items()}
    return pb.Span(
        span_id=own, parent_id=parent, service="headrace-gateway", name=name, start_ns=start * MS, end_ns=end * MS,
        attributes=told,
    )  # fmt: skip


def trace(**root: str) -> pb.Trace:
    return pb.Trace(
        trace_id="t",
        spans=[
            span("g", "r", "gate", 100, 110),
            span(
                "r",
                "client",
                "chat m",
                100,
                1100,
                **{"headrace__terminal": "completed", "headrace__ttft_s": "1", **root},
            ),
            span("a", "r", "attempt", 120, 1080),
            span("o", "r", "route", 110, 120, headrace__why="warm", headrace__replica="r1", headrace__decision="d1"),
            span("d", "a", "decode", 900, 1080, headrace__worst_gap_s="0.02"),
            span("p", "a", "prefill", 820, 900, headrace__num_chunks="3"),
            span("q", "a", "queue", 120, 820),
            span("s", "r", "settle", 1080, 1090),
            span("x", "r", "deliver", 1090, 1100),
        ],
    )


def test_spans_are_drawn_below_their_parents_in_order_of_time() -> None:
    lines = waterfall.lines(trace(), 100)
    assert [line.name for line in lines] == [
        *(
            "chat m",
            "  gate",
            "  route",
            "  attempt",
            "    queue",
            "    prefill",
            "    decode",
            "  settle",
            "  deliver",
        ),
    ]
    queue = lines[4]
    assert (queue.start_ms, queue.took_ms, queue.first, queue.last) == (20.0, 700.0, 2, 72)
    assert queue.bar(100) == "  " + "█" * 70 + " " * 28
    assert lines[2].notes == "decision=d1, replica=r1, why=warm" and lines[5].notes == "num_chunks=3"


def test_the_shortest_span_still_has_a_cell() -> None:
    lines = waterfall.lines(trace(), 10)
    assert all(0 <= line.first < line.last <= 10 for line in lines)


def test_phases_add_up_to_the_response() -> None:
    spent = waterfall.phases_ms(trace())
    assert spent == {
        "gate": 10.0, "route": 10.0, "queue": 700.0, "prefill": 80.0, "decode": 180.0, "settle": 10.0, "deliver": 10.0
    }  # fmt: skip
    assert sum(spent.values()) == 1000.0


def test_the_verdict_names_the_phase_that_broke_the_budget() -> None:
    late = trace(headrace__slo__broken="ttft", headrace__slo__phase="queue", headrace__num_attempts="2")
    assert waterfall.verdict(late) == (
        "completed after 1,000 ms, on attempt 2; the first text was late, and queue broke the budget (700 ms)."
    )
    gap = trace(headrace__slo__broken="inter_token", headrace__slo__phase="decode")
    assert waterfall.verdict(gap).endswith("a gap between two texts was late, and decode broke the budget (180 ms).")
    assert waterfall.verdict(trace()) == "completed after 1,000 ms; it met its budgets."


def test_a_failure_says_why_and_no_more() -> None:
    failed = trace(headrace__terminal="failed")
    failed.spans[1].error = "engine_error"
    failed.spans[1].attributes.pop("headrace.ttft_s")
    assert waterfall.verdict(failed) == "failed after 1,000 ms: engine_error."
