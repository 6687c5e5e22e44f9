"""The page of metrics is current, no label can grow without bound, and each metric has a test that reads it."""

from pathlib import Path

from tools import metrics_doc

ROOT = Path(__file__).parents[3]
CLOSED_LABELS = {
    *("to", "why", "task", "method", "code", "model", "slo_class", "window", "api", "field", "reason", "outcome"),
    *("budget", "phase", "met", "kind", "verdict", "result", "state", "held", "because", "gpu", "what", "resource"),
    *("part", "pool"),
}
"""Each from a closed set: of our own words, of the snapshot, or of the host's devices."""


def test_the_page_of_metrics_is_current() -> None:
    assert metrics_doc.PATH.read_text("utf-8") == metrics_doc.render(), "run: python -m tools.metrics_doc"


def test_every_label_is_from_a_closed_set() -> None:
    for rows in metrics_doc.metrics().values():
        assert not {label for row in rows for label in row.labels} - CLOSED_LABELS


def test_every_metric_has_a_unit_or_counts() -> None:
    for rows in metrics_doc.metrics().values():
        for row in rows:
            assert row.meaning and (row.kind != "counter" or row.name.endswith("_total")), row
            assert row.kind != "histogram" or row.name.endswith(("_seconds", "_rows", "_tokens", "_bytes")), row


def test_each_metric_is_read_by_a_test() -> None:
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path.name != Path(__file__).name]
    text = "\n".join(path.read_text("utf-8") for path in tests)
    names = [row.name for rows in metrics_doc.metrics().values() for row in rows]
    assert len(names) == len(set(names))
    assert [name for name in names if f'"{name}' not in text and f"'{name}" not in text] == []
