"""What a load says in bytes, on the page that Prometheus reads."""

from __future__ import annotations

from headrace_kit import telemetry
from headrace_worker.records import record_load
from headrace_worker.scheduling.load import Load


def value(name: str, **labels: str) -> float | None:
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
        oldest_wait_s=0.0,
        reservation_utilization=0.5,
    )
    record_load(load, page_bytes=1000)
    found = {what: value("worker_kv_bytes", what=what) for what in ("pool", "promised", "free", "held", "cached")}
    assert found == {"pool": 10_000, "promised": 7_000, "free": 1_000, "held": 2_000, "cached": 3_000}
    assert value("worker_kv_bytes", what="quarantined") == 4_000
    assert value("worker_pages", state="cached") == 3
    assert value("worker_reservation_utilization") == 0.5
