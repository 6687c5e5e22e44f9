"""Writes docs/metrics.md from what the services register: `python -m tools.metrics_doc`."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_kit import telemetry

PATH = Path(__file__).parents[1] / "docs/metrics.md"
HEAD = """\
# Metrics

Every service answers `/metrics` on its internal HTTP listener to those who show the service token (`Authorization:
Bearer …`). The page is Prometheus' text format; with `Accept: application/openmetrics-text` it is OpenMetrics, whose
latency histograms carry exemplars: the trace id of a response that fell into the bucket, for `headrace trace` or your
trace store. Units are in the names. Every label is from a closed set: no tenant, key, request or client's own word ever
becomes one, and a worker has at most 1,000 series.

`model` and `slo_class` are names of the snapshot; a model that is not in it is `unknown`, a class that is not `none`.
Latency histograms run from 1 ms to 600 s and have an edge at each class's budgets; when a snapshot changes the budgets
they begin anew, as after a restart.

This page is written by `python -m tools.metrics_doc`.
"""
SECTIONS = {
    "kit": "Every service",
    "gateway": "Gateway",
    "policy": "Policy",
    "router": "Router",
    "controlplane": "Control plane",
    "worker": "Worker",
}
# Collectors that are made with a process' parts; their descriptions need none.
MADE_LATER = {"router": ("headrace_router.gauges", "Gauges"), "worker": ("headrace_worker.nvml", "Nvml")}


@dataclass(frozen=True)
class Metric:
    """As Prometheus knows it: a counter's name ends in _total."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def metrics() -> dict[str, list[Metric]]:
    """By section, in order of name."""
    return {section: sorted(_of(section), key=lambda one: one.name) for section in SECTIONS}


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for section, rows in metrics().items():
        parts += [f"\n## {SECTIONS[section]}\n", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        parts += [f"| `{one.name}` | {one.kind} | {', '.join(one.labels)} | {one.meaning} |" for one in rows]
    return "\n".join(parts) + "\n"


def _of(section: str) -> Iterator[Metric]:
    for collector in _collectors(section):
        for family in collector.describe():
            labels = tuple(getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ()) or ())
            suffix = "_total" if family.type == "counter" else ""
            yield Metric(family.name + suffix, family.type, labels, family.documentation)


def _collectors(section: str) -> list[Any]:
    """What the modules of a package hold and have registered."""
    registered = {id(one) for one in telemetry.REGISTRY._collector_to_names}
    found: dict[int, Any] = {}
    for module in _those_that_measure(f"headrace_{section}"):
        registered |= {id(one) for one in telemetry.REGISTRY._collector_to_names}
        found |= {id(value): value for value in vars(module).values() if id(value) in registered}
    module_name, name = MADE_LATER.get(section, ("", ""))
    later = [getattr(importlib.import_module(module_name), name)] if module_name else []
    return [*found.values(), *(kind.__new__(kind) for kind in later)]


def _those_that_measure(package: str) -> Iterator[Any]:
    """Imported; a module that says nothing of telemetry has no metric, and may need what is not installed."""
    for root in importlib.import_module(package).__path__:
        for path in sorted(Path(root).rglob("*.py")):
            if "telemetry" in path.read_text("utf-8") and path.name != "__main__.py":
                dotted = ".".join(path.relative_to(root).with_suffix("").parts)
                yield importlib.import_module(f"{package}.{dotted}")


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
