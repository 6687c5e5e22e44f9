"""What loads and endings say on the page that Prometheus reads."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.v1 import worker_pb2
from headrace_kit import telemetry
from headrace_worker.records import record_final, record_imbalance, record_load, record_refusal
from headrace_worker.scheduling.load import Load


def value(name: str, **labels: str) -> Any:
    return telemetry.REGISTRY.get_sample_value(name, labels)


def test_a_load_is_exported_in_pages_and_bytes() -> None:
    load = Load(
        num_running=3,
        num_waiting=2,
        num_queued_tokens=9,
        num_promised_pages=7,
        num_free_pages=1,
        num_held_pages=2,
        num_cached_pages=3,
        num_quarantined_pages=4,
        num_total_pages=10,
        oldest_wait_s=2.5,
        reservation_utilization=0.5,
        num_statistical=2,
        num_suspended=1,
        num_preempted=6,
    )
    record_load(load, page_bytes=1000, page_tokens=16)
    found = {what: value("worker_kv_bytes", what=what) for what in ("pool", "promised", "free", "held", "cached")}
    assert found == {"pool": 10_000, "promised": 7_000, "free": 1_000, "held": 2_000, "cached": 3_000}
    assert value("worker_kv_bytes", what="quarantined") == 4_000
    assert value("worker_pages", state="cached") == 3
    assert value("worker_reservation_utilization") == 0.5
    assert (value("worker_running"), value("worker_waiting"), value("worker_promised_pages")) == (3, 2, 7)
    assert (value("worker_queue_age_seconds"), value("worker_queued_tokens")) == (2.5, 9)
    assert value("worker_admitted_tokens") == 7 * 16
    assert [value("worker_statistical_requests", state=state) for state in ("running", "preempted")] == [2, 1]
    assert value("worker_preemptions") == 6


def test_the_end_of_a_choice_is_counted_by_kind_and_its_tokens_by_fate() -> None:
    names = ("generated", "late", "accepted", "prompt", "cached")
    before = {name: value("worker_tokens_total", kind=name) or 0 for name in names}
    ended = value("worker_sequences_total", kind="cancelled") or 0
    sums = ("worker_queue_seconds_sum", "worker_prefill_seconds_sum", "worker_worst_gap_seconds_sum")
    spent = [value(name) or 0 for name in (*sums, "worker_device_seconds_total")]
    final = worker_pb2.Final(
        kind=worker_pb2.FINAL_KIND_CANCELLED,
        num_prompt_tokens=32,
        num_cached_tokens=16,
        num_generated_tokens=5,
        num_accepted_tokens=3,
        num_late_tokens=1,
        queue_ms=300,
        prefill_ms=200,
        worst_gap_ms=70,
        device_us=1_500_000,
    )
    record_final(final)
    got = {name: value("worker_tokens_total", kind=name) - before[name] for name in names}
    assert got == {"generated": 5, "late": 1, "accepted": 3, "prompt": 32, "cached": 16}
    assert value("worker_sequences_total", kind="cancelled") == ended + 1
    after = [value(name) or 0 for name in (*sums, "worker_device_seconds_total")]
    assert [new - old for new, old in zip(after, spent, strict=True)] == pytest.approx([0.3, 0.2, 0.07, 1.5])


def test_refusals_and_imbalances_are_counted() -> None:
    before = value("worker_refusals_total", reason="busy") or 0, value("worker_imbalances_total")
    record_refusal("busy")
    record_imbalance()
    assert (value("worker_refusals_total", reason="busy"), value("worker_imbalances_total")) == (
        before[0] + 1,
        before[1] + 1,
    )
