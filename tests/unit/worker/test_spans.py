"""The spans of an attempt: its phases by its finals' own times, and only if the gateway keeps the trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.v1 import worker_pb2
from headrace_kit.health import Health
from headrace_kit.tracing import SPANS, Span
from headrace_worker.attempts import Attempt
from headrace_worker.config import WorkerConfig
from headrace_worker.engine import EngineOutput
from headrace_worker.execution.runner import RunnerDescription
from headrace_worker.execution.step_log import SequenceNotes
from headrace_worker.messages import Ready
from headrace_worker.replica import Replica
from headrace_worker.scheduling.events import Accepted, Finished
from headrace_worker.scheduling.load import Load
from headrace_worker.spans import spans_of
from tests.unit.worker.test_books import Bench

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SHAPE = RunnerDescription("scripted", "m", "r", b"f", 300, frozenset(), 1000, 16, 10, "float32", kv_bytes_per_token=100)
BEGAN_NS = 1_000_000_000
LOAD = Load(1, 0, 0, 5, 5, 5, 0, 0, 10, 0.0, None)


@pytest.fixture
def replica() -> Replica:
    config = WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), engine="scripted", replica_id="r1")
    made = Replica(config, "127.0.0.1:1", Health())
    made.note_ready(Ready(SHAPE, {}))
    return made


def attempt(*finals: worker_pb2.Final, traceparent: str = f"00-{TRACE}-{PARENT}-00") -> Attempt:
    submit = worker_pb2.Submit(response_id="r", attempt=2, n=len(finals), traceparent=traceparent)
    submit.replica_epoch, submit.snapshot_version, submit.slo_class = "e", 7, "chat"
    made = Attempt(submit, 1, "g", None, finals=list(finals), submitted_ns=BEGAN_NS, ended_ns=BEGAN_NS + 10**9)
    made.pool_pressure = 0.5
    return made


def final(choice: int = 0, decode_ms: float = 400, num_generated: int = 4, **more: object) -> worker_pb2.Final:
    made = worker_pb2.Final(
        choice=choice,
        kind=worker_pb2.FINAL_KIND_STOP,
        reason="stop",
        num_prompt_tokens=64,
        num_cached_tokens=48,
        num_generated_tokens=num_generated,
        queue_ms=300,
        prefill_ms=200,
        decode_ms=decode_ms,
        worst_gap_ms=150,
        device_us=250_000,
        num_promised_pages=5,
        num_used_pages=4,
    )
    for name, value in more.items():
        setattr(made, name, value)
    return made


def by_name(spans: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


def test_the_phases_follow_one_another_and_say_what_they_met(replica: Replica) -> None:
    made = attempt(final(), final(1, decode_ms=900, num_generated=9))
    made.notes = {0: SequenceNotes(3, 2, 4), 1: SequenceNotes(0, 6, 8, 0.125)}
    made.binding = ("hbm_bandwidth", 0.61)
    spans = by_name(list(spans_of(made, replica)))
    assert list(spans) == ["queue", "prefill", "decode"]
    edges = [(span.start_ns, span.end_ns) for span in spans.values()]
    assert edges == [
        (BEGAN_NS, BEGAN_NS + 300_000_000),
        (BEGAN_NS + 300_000_000, BEGAN_NS + 500_000_000),
        (BEGAN_NS + 500_000_000, BEGAN_NS + 1_400_000_000),
    ]
    assert {(span.context.trace_id, span.parent_id, span.context.sampled) for span in spans.values()} == {
        (TRACE, PARENT, True)
    }
    prefill = spans["prefill"].attributes
    assert prefill["headrace.num_chunks"] == 3 and prefill["headrace.num_cached_tokens"] == 48
    assert prefill["headrace.reservation_bytes"] == 5 * 16 * 100 and prefill["headrace.pool_pressure"] == 0.5
    decode = spans["decode"].attributes
    assert decode["gen_ai.usage.output_tokens"] == 13 and decode["headrace.worst_gap_s"] == 0.15
    assert (decode["headrace.batch_p50"], decode["headrace.batch_p95"], decode["headrace.collective_s"]) == (
        6,
        8,
        0.125,
    )
    assert (decode["headrace.binding_resource"], decode["headrace.binding_share"]) == ("hbm_bandwidth", 0.61)
    assert decode["headrace.device_s"] == 0.5
    for span in spans.values():
        about = span.attributes
        assert (about["headrace.attempt"], about["headrace.replica"], about["headrace.replica_epoch"]) == (2, "r1", "e")
        assert about["headrace.snapshot_version"] == 7 and span.error == ""


def test_one_that_failed_in_prefill_has_no_decode_and_says_why(replica: Replica) -> None:
    failed = final(num_generated=0, decode_ms=0, kind=worker_pb2.FINAL_KIND_FAILED, reason="kv_exhausted")
    spans = by_name(list(spans_of(attempt(failed), replica)))
    assert list(spans) == ["queue", "prefill"] and spans["prefill"].error == "kv_exhausted"


def test_one_whose_engine_was_lost_lasts_until_then(replica: Replica) -> None:
    lost = final(prefill_ms=0, decode_ms=0, kind=worker_pb2.FINAL_KIND_FAILED, reason="worker_lost")
    spans = by_name(list(spans_of(attempt(lost), replica)))
    assert spans["decode"].end_ns == BEGAN_NS + 10**9 and spans["decode"].error == "worker_lost"


def test_without_a_trace_context_there_are_none(replica: Replica) -> None:
    assert not list(spans_of(attempt(final(), traceparent=""), replica))
    assert not list(spans_of(attempt(), replica))


class Outlet(list[Span]):
    def put(self, span: Span) -> None:
        self.append(span)


@pytest.mark.parametrize("traced", [True, False])
def test_they_leave_when_the_gateway_says_that_the_trace_is_kept(traced: bool) -> None:
    bench, outlet = Bench(), Outlet()
    handle = bench.submit(1)
    found = bench.dispatch.attempts.find("r1", 1)
    assert found is not None and found.submitted_ns > 0
    found.submit.traceparent = f"00-{TRACE}-{PARENT}-00"
    bench.tell(Accepted(handle, "r1", 1, 0, 1, 0.25), load=LOAD)
    ended = Finished(handle, "r1", 1, 0, "completed", "stop", 1, 0, 3, 3, 0, 0.25, 0.5, 1.0, 0.75, 1, 1)
    bench.dispatch.deliver(EngineOutput(2, (ended,), LOAD, notes={handle: SequenceNotes(2, 1, 1)}))
    SPANS.outlets.append(outlet)
    try:
        ref = worker_pb2.AttemptRef(response_id="r1", attempt=1, traced=traced)
        bench.dispatch.ack(bench.mailbox, worker_pb2.Ack(attempts=[ref]))
    finally:
        SPANS.outlets.remove(outlet)
    assert [span.name for span in outlet] == (["queue", "prefill", "decode"] if traced else [])
    if traced:
        assert outlet[1].attributes["headrace.num_chunks"] == 2
        assert outlet[1].attributes["headrace.pool_pressure"] == 0.5
    assert len(bench.dispatch.attempts) == 0
