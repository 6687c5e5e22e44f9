"""What one response tells metrics, SLO and trace; on a virtual clock, in seconds from its arrival at 100."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.v1 import inference_pb2, policy_pb2, response_pb2, routing_pb2, snapshot_pb2, worker_pb2
from headrace_gateway.arrival import Arrival
from headrace_gateway.instruments import BOARD, INTER_TOKEN, TTFT, Instruments
from headrace_gateway.lifecycle import outputs
from headrace_gateway.lifecycle.settlement import Usage
from headrace_gateway.meter import Meter, count_refusal
from headrace_gateway.prepared import Prepared
from headrace_gateway.trace_draw import TraceDraw
from headrace_kit import telemetry
from headrace_kit.tracing import SPANS, Span, TraceContext

T0 = 100.0
TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
LABELS = {"model": "m", "slo_class": "chat"}


def value(name: str, **labels: str) -> Any:
    return telemetry.REGISTRY.get_sample_value(name, labels)


@dataclass
class Bench:
    """One response at a time, played from outside."""

    draw: TraceDraw = field(default_factory=lambda: TraceDraw(1.0, 1e9))
    spans: list[Span] = field(default_factory=list)
    retry_of: str = ""

    def __post_init__(self) -> None:
        self.instruments = Instruments(self.draw)
        classes = [snapshot_pb2.SloClass(name="chat", ttft_ms=700, inter_token_ms=100, delivery_reserve_ms=50)]
        self.instruments.apply(snapshot_pb2.GatewaySection(classes=classes))

    def put(self, span: Span) -> None:
        self.spans.append(span)

    def meter(self, response_id: str = "resp_1") -> Meter:
        request = inference_pb2.GenerateRequest(model="alias", text="hi", retry_of=self.retry_of)
        request.sampling.temperature = 0.5
        prepared = SimpleNamespace(
            request=request,
            model=SimpleNamespace(name="m"),
            identity=policy_pb2.Identity(tenant="t"),
            bounds=response_pb2.Bounds(num_prompt_tokens=64, max_output_tokens=9, n=1),
            slo_class="chat",
        )
        arrival = Arrival(T0, TraceContext(TRACE, "1" * 16), CLIENT)
        return Meter(response_id, cast(Prepared, prepared), arrival, self.instruments)

    def route(self, meter: Meter, number: int, start: float, end: float) -> None:
        meter.trace.routing(number, T0 + start)
        replica = response_pb2.ReplicaRef(id=f"r{number}", epoch="e")
        answer = routing_pb2.RouteResponse(decision_id="d", replica=replica, predicted_prefill_ms=200, why="only one")
        meter.trace.routed(number, answer, T0 + end)

    def by_name(self) -> dict[str, Span]:
        return {span.name: span for span in self.spans}


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    SPANS.outlets.append(made)
    yield made
    SPANS.outlets.remove(made)


def terminal(kind: str = "completed", reason: str = "stop") -> outputs.Terminal:
    return outputs.Terminal(9, kind, reason, "", Usage(64, 48, 4))


def report(number: int, outcome: str, reason: str = "", phase: str = "decode") -> outputs.Report:
    return outputs.Report(number, "d", outcome, reason, phase, 4)


def play(
    bench: Bench, meter: Meter, *, first: float, then: float, queue_ms: float, prefill_ms: float, cost: float = 0.25
) -> None:
    """Routed at 10 ms; a worker that says how long it queued and prefilled; two texts; settled at the end."""
    bench.route(meter, 1, 0.006, 0.010)
    attempt = meter.trace.attempt(1)
    attempt.accept(worker_pb2.Accepted(), T0 + 0.010 + queue_ms / 1000)
    meter.text(T0 + first)
    meter.text(T0 + then)
    attempt.end(worker_pb2.Final(queue_ms=queue_ms, prefill_ms=prefill_ms, decode_ms=200, worst_gap_ms=90))
    meter.trace.reported(report(1, "completed"), T0 + then)
    meter.keeps_trace(failed=False, now=T0 + then)
    meter.trace.settling(T0 + then)
    meter.trace.settled(cost, T0 + then + 0.002)
    meter.finish(terminal(), 7, T0 + then + 0.003)


def test_time_to_first_text_runs_from_accept_and_has_the_queue_in_it(bench: Bench) -> None:
    before = [value("ttft_seconds_sum", **LABELS) or 0, value("inter_token_seconds_sum", **LABELS) or 0]
    meter = bench.meter()
    play(bench, meter, first=0.510, then=0.600, queue_ms=300, prefill_ms=190)
    assert [meter.ttft_s, meter.inter_token_s] == pytest.approx([0.51, 0.09])
    after = [value("ttft_seconds_sum", **LABELS), value("inter_token_seconds_sum", **LABELS)]
    assert [new - old for new, old in zip(after, before, strict=True)] == pytest.approx([0.51, 0.09])
    spans = bench.by_name()
    assert spans["text_completion m"].attributes["headrace.ttft_s"] == pytest.approx(0.51)


def test_ten_in_a_row_have_waited_for_one_another(bench: Bench) -> None:
    series = TTFT.of("m", "chat")
    before = list(series.counts)
    for k in range(1, 11):
        meter = bench.meter()
        meter.text(T0 + (k - 1) + 0.1)
        assert meter.ttft_s == pytest.approx((k - 1) + 0.1)
    new = [now - old for now, old in zip(series.counts, before, strict=True)]
    middle = next(i for i in range(len(new)) if sum(new[: i + 1]) >= 6)
    edges = (*series._edges, float("inf"))
    assert edges[middle] >= 4.1  # the median is where the clients felt it


def test_a_class_that_was_met_is_counted_and_points_to_its_trace(bench: Bench) -> None:
    before = value("slo_responses_total", slo_class="chat", met="good") or 0
    play(bench, bench.meter(), first=0.510, then=0.600, queue_ms=300, prefill_ms=190)
    assert value("slo_responses_total", slo_class="chat", met="good") == before + 1
    assert {one.labels["trace_id"] for one in TTFT.of("m", "chat").exemplars.values()} >= {TRACE}
    assert {one.labels["trace_id"] for one in INTER_TOKEN.of("m", "chat").exemplars.values()} >= {TRACE}


@pytest.mark.parametrize(
    "first, queue_ms, prefill_ms, phase",
    [(0.9, 680, 200, "queue"), (1.4, 100, 1280, "prefill"), (1.4, 100, 200, "deliver")],
)
def test_a_late_first_text_is_blamed_on_a_phase(
    bench: Bench, first: float, queue_ms: float, prefill_ms: float, phase: str
) -> None:
    labels = {"slo_class": "chat", "budget": "ttft", "phase": phase}
    before = value("slo_broken_total", **labels) or 0
    bench.draw._share = 0.0  # kept all the same
    play(bench, bench.meter(), first=first, then=first + 0.05, queue_ms=queue_ms, prefill_ms=prefill_ms)
    assert value("slo_broken_total", **labels) == before + 1
    root = bench.by_name()["text_completion m"]
    assert (root.attributes["headrace.slo.broken"], root.attributes["headrace.slo.phase"]) == ("ttft", phase)


def test_late_gaps_are_blamed_on_whoever_made_them(bench: Bench) -> None:
    meter = bench.meter()
    play(bench, meter, first=0.3, then=0.9, queue_ms=1, prefill_ms=100)  # the worker's own worst gap was 90 ms
    root = bench.by_name()["text_completion m"]
    assert (root.attributes["headrace.slo.broken"], root.attributes["headrace.slo.phase"]) == ("inter_token", "deliver")


def test_phases_tile_the_response_and_say_what_they_did(bench: Bench) -> None:
    meter = bench.meter()
    meter.trace.authenticated(T0 + 0.001)
    meter.trace.prepared(T0 + 0.004)
    play(bench, meter, first=0.510, then=0.600, queue_ms=300, prefill_ms=190)
    spans = bench.by_name()
    assert list(spans) == ["gate", "route", "attempt", "settle", "deliver", "text_completion m"]
    root = spans.pop("text_completion m")
    attempt = spans["attempt"]
    told = [spans[name] for name in ("gate", "route", "attempt", "settle", "deliver")]
    assert told[0].start_ns == root.start_ns and told[-1].end_ns == root.end_ns
    assert all(one.end_ns == two.start_ns for one, two in itertools.pairwise(told))
    assert (root.end_ns - root.start_ns) == 603_000_000 and root.kind == 2
    assert root.parent_id == CLIENT and {span.parent_id for span in told} == {root.context.span_id}
    assert {span.context.trace_id for span in bench.spans} == {TRACE}
    assert attempt.attributes["headrace.replica"] == "r1"
    assert spans["gate"].attributes == pytest.approx(
        {"headrace.auth_s": 0.001, "headrace.prepare_s": 0.003, "headrace.admit_s": 0.002}
    )
    about = root.attributes
    assert about["gen_ai.request.model"] == "alias" and about["gen_ai.response.model"] == "m"
    assert (about["gen_ai.response.id"], about["gen_ai.request.temperature"]) == ("resp_1", 0.5)
    assert (about["gen_ai.usage.input_tokens"], about["gen_ai.usage.output_tokens"]) == (64, 4)
    assert about["headrace.cost"] == 0.25 and about["headrace.snapshot_version"] == 7
    assert about["gen_ai.response.finish_reasons"] == ["stop"] and root.error == ""


def test_a_response_that_costs_nothing_says_so(bench: Bench) -> None:
    play(bench, bench.meter(), first=0.510, then=0.600, queue_ms=300, prefill_ms=190, cost=0.0)
    spans = bench.by_name()
    assert (spans["text_completion m"].attributes["headrace.cost"], spans["settle"].attributes["headrace.cost"]) == (
        0,
        0,
    )


def test_an_attempt_that_was_lost_is_told_from_here_and_the_trace_is_kept(bench: Bench) -> None:
    bench.draw._share = 0.0
    meter = bench.meter()
    bench.route(meter, 1, 0.006, 0.010)
    meter.trace.attempt(1).accept(worker_pb2.Accepted(), T0 + 0.1)
    meter.trace.reported(report(1, "lost", "worker_lost", "prefill"), T0 + 0.4)
    assert meter.keeps_trace(failed=True, now=T0 + 0.4)
    bench.route(meter, 2, 0.4, 0.41)
    meter.trace.reported(report(2, "cancelled", "", "queued"), T0 + 0.5)
    meter.trace.settling(T0 + 0.5)
    meter.trace.settled(None, T0 + 0.5)
    meter.finish(terminal("cancelled", "client"), 7, T0 + 0.5)
    told = [
        (s.name, s.attributes.get("headrace.attempt"), s.error) for s in bench.spans if s.name not in ("gate", "settle")
    ]
    assert told == [
        ("route", 1, ""),
        ("attempt", 1, "worker_lost"),
        ("queue", 1, ""),
        ("prefill", 1, "worker_lost"),
        ("route", 2, ""),
        ("attempt", 2, ""),
        ("queue", 2, ""),
        ("deliver", None, ""),
        ("text_completion m", None, "client"),
    ]
    assert bench.by_name()["text_completion m"].attributes["headrace.num_attempts"] == 2
    assert [meter.trace.attempt(number).is_told for number in (1, 2)] == [True, True]


def test_a_refusal_is_counted_by_reason_and_kept_only_if_it_is_ours(bench: Bench) -> None:
    bench.draw._share = 0.0
    before = {name: value("refusals_total", reason=name) or 0 for name in ("rpm", "busy")}
    rejected = value("responses_total", model="m", outcome="rejected") or 0
    for reason, kept in (("rpm", False), ("busy", True)):
        meter, refusal = bench.meter(), outputs.Refusal(reason)
        meter.refused(refusal)
        meter.trace.settling(T0 + 0.01)
        meter.finish(refusal, 7, T0 + 0.01)
        assert bool(bench.spans) is kept
    assert {name: value("refusals_total", reason=name) - old for name, old in before.items()} == {"rpm": 1, "busy": 1}
    assert value("responses_total", model="m", outcome="rejected") == rejected + 2
    assert bench.by_name()["text_completion m"].error == "busy"


def test_what_never_became_a_response_is_rejected_under_one_name(bench: Bench) -> None:
    before = value("responses_total", model="unknown", outcome="rejected") or 0
    count_refusal("unknown", "model_not_found")
    assert value("responses_total", model="unknown", outcome="rejected") == before + 1


def test_ordinary_traces_are_kept_by_the_draw_and_counted(bench: Bench) -> None:
    before = value("traces_kept_total", why="other") or 0
    bench.draw._share = 0.0
    play(bench, bench.meter(), first=0.510, then=0.600, queue_ms=300, prefill_ms=190)
    assert not bench.spans
    bench.draw._share = 1.0
    play(bench, bench.meter(), first=0.510, then=0.600, queue_ms=300, prefill_ms=190)
    assert bench.spans and value("traces_kept_total", why="other") == before + 1


def test_a_retry_is_linked_to_what_failed(bench: Bench) -> None:
    failed = bench.meter("resp_failed")
    failed.trace.settling(T0 + 0.1)
    failed.finish(terminal("failed", "engine_error"), 7, T0 + 0.1)
    bench.spans.clear()
    bench.retry_of = "resp_failed"
    play(bench, bench.meter("resp_2"), first=0.510, then=0.600, queue_ms=300, prefill_ms=190)
    [link] = bench.by_name()["text_completion m"].links
    assert (link.trace_id, link.span_id) == (TRACE, "1" * 16)
    assert link.attributes == {"headrace.retry_of": "resp_failed"}


def test_the_first_ending_is_the_only_one(bench: Bench) -> None:
    meter = bench.meter()
    before = value("slo_responses_total", slo_class="chat", met="counted") or 0
    play(bench, meter, first=0.510, then=0.600, queue_ms=300, prefill_ms=190)
    num = len(bench.spans)
    meter.finish(terminal(), 7, T0 + 5)
    assert len(bench.spans) == num
    assert value("slo_responses_total", slo_class="chat", met="counted") == before + 1
    assert BOARD.over("5m")["chat"].num >= 1
