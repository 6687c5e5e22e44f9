"""Writes the Grafana dashboard into deploy/ : `python -m tools.dashboards`. Every metric in it is one that we have."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "deploy/grafana/provisioning/dashboards"
PATH = FOLDER / "headrace.json"
PROVIDER = FOLDER / "provider.yaml"
_SOURCE = {"type": "prometheus", "uid": "prometheus"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 24
_RATE = "$__rate_interval"


@dataclass(frozen=True)
class Panel:
    """One graph: queries with their legends, one unit by Grafana's name."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]


def _quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    group = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (
            f"histogram_quantile({share}, sum by ({group}) (rate({metric}_bucket[{_RATE}])))",
            f"p{round(share * 100)}{legend}",
        )
        for share in (0.5, 0.95, 0.99)
    )


def _rate(metric: str, by: str) -> tuple[tuple[str, str], ...]:
    return ((f"sum by ({by}) (rate({metric}[{_RATE}]))", f"{{{{{by}}}}}"),)


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "What clients see",
        (
            Panel("Responses by ending", "reqps", _rate("responses_total", "outcome")),
            Panel("Refusals by reason", "reqps", _rate("refusals_total", "reason")),
            Panel("Open responses", "short", (("sum(responses_open)", "open"),)),
            Panel("Time to first token", "s", _quantiles("ttft_seconds", "slo_class")),
            Panel("Between two texts", "s", _quantiles("inter_token_seconds", "slo_class")),
            Panel(
                "Output tokens",
                "short",
                (('sum by (model) (rate(tokens_total{kind="output"}[$__rate_interval]))', "{{model}}"),),
            ),
        ),
    ),
    (
        "Objectives",
        (
            Panel(
                "Attainment, 5 minutes",
                "percentunit",
                (('min by (slo_class, budget) (slo_attainment_ratio{window="5m"})', "{{slo_class}} {{budget}}"),),
            ),
            Panel(
                "Error budget burn",
                "short",
                (("max by (slo_class, window) (slo_burn_ratio)", "{{slo_class}} {{window}}"),),
            ),
            Panel(
                "Goodput",
                "reqps",
                (('sum by (slo_class) (goodput_responses_per_second{window="5m"})', "{{slo_class}}"),),
            ),
            Panel(
                "Broken budgets by phase",
                "reqps",
                (("sum by (phase) (rate(slo_broken_total[$__rate_interval]))", "{{phase}}"),),
            ),
        ),
    ),
    (
        "Engines",
        (
            Panel(
                "Running and waiting", "short", (("sum(worker_running)", "running"), ("sum(worker_waiting)", "waiting"))
            ),
            Panel("KV memory", "bytes", (("sum by (what) (worker_kv_bytes)", "{{what}}"),)),
            Panel("Age of the oldest waiting request", "s", (("max(worker_queue_age_seconds)", "oldest"),)),
            Panel(
                "Step time by part, mean",
                "s",
                (
                    (
                        "sum by (part) (rate(worker_step_seconds_sum[$__rate_interval]))"
                        " / sum by (part) (rate(worker_step_seconds_count[$__rate_interval]))",
                        "{{part}}",
                    ),
                ),
            ),
            Panel(
                "Share of each resource",
                "percentunit",
                (("avg by (resource) (worker_resource_ratio)", "{{resource}}"),),
            ),
            Panel(
                "Batch occupancy",
                "percentunit",
                (("avg(worker_batch_occupancy_ratio)", "mean"), ("max(worker_batch_occupancy_ratio)", "highest")),
            ),
            Panel("Tokens by what became of them", "short", _rate("worker_tokens_total", "kind")),
            Panel("Used of what was promised", "percentunit", (("avg(worker_reservation_utilization)", "mean"),)),
            Panel(
                "Cards", "percentunit", (("avg by (instance, gpu) (gpu_utilization_ratio)", "{{instance}} {{gpu}}"),)
            ),
        ),
    ),
    (
        "Routing and fleet",
        (
            Panel("Replicas by state", "short", (("sum by (state) (replicas)", "{{state}}"),)),
            Panel("Breakers", "short", (("max by (state) (breakers)", "{{state}}"),)),
            Panel("Time to a decision", "s", _quantiles("route_seconds")),
            Panel("Requests that wait for a replica", "short", (("sum by (model) (route_held)", "{{model}}"),)),
            Panel("Room in ready replicas, tokens", "short", (("max by (model) (warm_tokens)", "{{model}}"),)),
            Panel(
                "Snapshot versions",
                "short",
                (("max by (job) (snapshot_version)", "{{job}}"), ("max(fleet_version)", "newest")),
            ),
        ),
    ),
    (
        "Policy and books",
        (
            Panel("Admissions by verdict", "reqps", _rate("admits_total", "verdict")),
            Panel("Calls to the quota store", "s", _quantiles("redis_call_seconds")),
            Panel("Calls to the quota store by result", "reqps", _rate("redis_calls_total", "result")),
            Panel(
                "Equations that do not balance",
                "short",
                (("max(audit_unbalanced)", "fleet"), ("sum(worker_imbalances_total)", "engines")),
            ),
            Panel(
                "Not settled, not on disk",
                "short",
                (("sum(settlements_waiting)", "settlements"), ("sum(journal_rows_waiting)", "journal rows")),
            ),
            Panel("Screening", "reqps", _rate("screened_total", "verdict")),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """As Grafana provisions it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(
            {"type": "row", "title": title, "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top}, "panels": []}
        )
        top += 1
        for index, panel in enumerate(row):
            place = {
                "h": _HEIGHT,
                "w": _WIDTH,
                "x": index * _WIDTH % _COLUMNS,
                "y": top + index * _WIDTH // _COLUMNS * _HEIGHT,
            }
            panels.append(_panel(panel, place))
        top += -(-len(row) * _WIDTH // _COLUMNS) * _HEIGHT
    for number, panel_json in enumerate(panels, 1):
        panel_json["id"] = number
    return {
        "uid": "headrace",
        "title": "Headrace",
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "panels": panels,
    }


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.lines)
        ],
    }


def render() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
