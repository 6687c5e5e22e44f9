"""What a replica leaves behind for those who watch it: counters and gauges. Decides nothing."""

from __future__ import annotations

from headrace.v1 import worker_pb2
from headrace_kit import telemetry
from headrace_worker.scheduling.load import Load

_KINDS = {
    worker_pb2.FINAL_KIND_STOP: "stop",
    worker_pb2.FINAL_KIND_LENGTH: "length",
    worker_pb2.FINAL_KIND_CANCELLED: "cancelled",
    worker_pb2.FINAL_KIND_FAILED: "failed",
}
_sequences = telemetry.counter("worker_sequences_total", "Choices that ended, by how", ["kind"])
_refusals = telemetry.counter("worker_refusals_total", "Requests that never ran, by reason", ["reason"])
_tokens = telemetry.counter("worker_tokens_total", "Tokens by what became of them", ["kind"])
_device = telemetry.counter("worker_device_seconds_total", "Device time attributed to choices that ended")
_queue = telemetry.histogram("worker_queue_seconds", "From submit to acceptance")
_prefill = telemetry.histogram("worker_prefill_seconds", "From acceptance to the first token")
_gap = telemetry.histogram("worker_worst_gap_seconds", "Longest gap between two tokens of a choice")
_running = telemetry.gauge("worker_running", "Choices that run")
_waiting = telemetry.gauge("worker_waiting", "Requests that wait")
_pages = telemetry.gauge("worker_pages", "KV pages by state", ["state"])
_bytes = telemetry.gauge("worker_kv_bytes", "Bytes of KV pages: of the pool, promised, and by state", ["what"])
_promised = telemetry.gauge("worker_promised_pages", "KV pages promised to running requests")
_utilization = telemetry.gauge("worker_reservation_utilization", "Pages used of pages promised, over ended requests")
_statistical = telemetry.gauge("worker_statistical_requests", "Statistical requests that run, or rest", ["state"])
_preemptions = telemetry.gauge("worker_preemptions", "Preemptions of statistical requests since the start")
_imbalances = telemetry.counter("worker_imbalances_total", "Equations that did not balance when the engine was idle")


_queue_age = telemetry.gauge("worker_queue_age_seconds", "How long the oldest waiting request has waited")
_queued_tokens = telemetry.gauge("worker_queued_tokens", "Prompt tokens that wait or are not computed yet")
_admitted = telemetry.gauge("worker_admitted_tokens", "Tokens of prompt and output promised to running requests")
_STATES = ("free", "held", "cached", "quarantined")
_pages_by_state = {state: _pages.labels(state) for state in _STATES}
_bytes_by_what = {what: _bytes.labels(what) for what in ("pool", "promised", *_STATES)}


def record_load(load: Load, page_bytes: int, page_tokens: int) -> None:
    """`page_bytes` are those of one KV page over all layers; 0 where no KV is kept (scripted)."""
    _queue_age.set(load.oldest_wait_s)
    _queued_tokens.set(load.num_queued_tokens)
    _admitted.set(load.num_promised_pages * page_tokens)
    _running.set(load.num_running)
    _waiting.set(load.num_waiting)
    _promised.set(load.num_promised_pages)
    _bytes_by_what["pool"].set(load.num_total_pages * page_bytes)
    _bytes_by_what["promised"].set(load.num_promised_pages * page_bytes)
    for state, pages in _pages_by_state.items():
        num_pages = getattr(load, f"num_{state}_pages")
        pages.set(num_pages)
        _bytes_by_what[state].set(num_pages * page_bytes)
    _statistical.labels("running").set(load.num_statistical)
    _statistical.labels("preempted").set(load.num_suspended)
    _preemptions.set(load.num_preempted)
    if load.reservation_utilization is not None:
        _utilization.set(load.reservation_utilization)


def record_refusal(reason: str) -> None:
    _refusals.labels(reason).inc()


def record_imbalance() -> None:
    _imbalances.inc()


def record_final(final: worker_pb2.Final) -> None:
    """Counts the end of a choice."""
    _sequences.labels(_KINDS[final.kind]).inc()
    _tokens.labels("generated").inc(final.num_generated_tokens)
    _tokens.labels("late").inc(final.num_late_tokens)
    _tokens.labels("accepted").inc(final.num_accepted_tokens)
    if final.choice == 0:
        _tokens.labels("prompt").inc(final.num_prompt_tokens)
        _tokens.labels("cached").inc(final.num_cached_tokens)
        _queue.observe(final.queue_ms / 1000)
    _device.inc(final.device_us / 1e6)
    if final.num_generated_tokens:
        _prefill.observe(final.prefill_ms / 1000)
        _gap.observe(final.worst_gap_ms / 1000)
