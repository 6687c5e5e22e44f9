from headrace_kit import telemetry


def test_latency_buckets_tell_the_objective_apart() -> None:
    histogram = telemetry.histogram("kit_test_seconds", "of this test")
    for value in (0.65, 0.75, 480.0, 0.02, 0.08):
        histogram.observe(value)
    counts = {
        edge: telemetry.REGISTRY.get_sample_value("kit_test_seconds_bucket", {"le": edge})
        for edge in ("0.02", "0.1", "0.7", "1.0", "300.0", "600.0")
    }
    assert counts == {"0.02": 1, "0.1": 2, "0.7": 3, "1.0": 4, "300.0": 4, "600.0": 5}


def test_exemplars_are_shown_to_those_who_read_open_metrics() -> None:
    histogram = telemetry.histogram("kit_exemplar_seconds", "of this test")
    histogram.observe(0.3, {"trace_id": "abc"})
    plain, plain_type = telemetry.exposition()
    rich, rich_type = telemetry.exposition("application/openmetrics-text; version=1.0.0")
    assert plain_type.startswith("text/plain") and b"abc" not in plain
    assert rich_type.startswith("application/openmetrics-text") and b'# {trace_id="abc"} 0.3' in rich
