"""The report as one HTML file without any other: figures, plots, and the run's options, so that it can be run again."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from headrace_bench.load import Run
from headrace_bench.outcome import Outcome
from headrace_bench.plots import cumulative, line_plot

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1180px;padding:0 1rem}
body{color:#111827;background:#fff}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .8rem;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(480px,1fr));gap:1rem}
svg{width:100%}svg text{font:11px system-ui,sans-serif;fill:#374151}svg .title{font-size:13px;font-weight:600}
svg .tick{text-anchor:middle}svg .mark,svg .key{text-anchor:end}svg .grid{stroke:#e5e7eb}
pre{background:#f3f4f6;padding:.8rem}
"""
_ROWS = (
    ("time to first token", "ttft_s", 1000, "ms"),
    ("between texts", "itl_s", 1000, "ms"),
    ("time per output token", "tpot_s", 1000, "ms"),
    ("whole response", "latency_s", 1, "s"),
)
_COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")


def page(run: Run, summary: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """One document."""
    good = [one for one in run.outcomes if one.ok]
    plots = [
        line_plot(
            "Time to first token, cumulative",
            "s",
            "% of requests",
            [("", cumulative([one.ttft_s for one in good if one.ttft_s is not None]))],
        ),
        line_plot(
            "Gaps between texts, cumulative",
            "s",
            "% of gaps",
            [("", cumulative([gap for one in good for gap in one.gaps_s]))],
        ),
        line_plot(
            "Time to first token over the run",
            "s since the start",
            "s",
            [("", [(one.sent_s, one.ttft_s) for one in good if one.ttft_s is not None])],
        ),
        line_plot("Requests in flight", "s since the start", "requests", [("", in_flight(run.outcomes))]),
        line_plot("Output", "s since the start", "texts / s", [("", rate_of_texts(good))]),
    ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>headrace bench</title><style>{_STYLE}</style>"
        f"<h1>Load on {escape(str(options.get('url', '')))}</h1>{_figures(summary)}{_spreads(summary)}"
        f"<div class=plots>{''.join(plots)}</div>{_errors(summary)}"
        f"<h2>Options</h2><pre>{escape(json.dumps(options, indent=2))}</pre></html>"
    )


def in_flight(outcomes: Sequence[Outcome]) -> list[tuple[float, float]]:
    """Requests that ran, at each moment at which that changed."""
    changes = sorted([(one.sent_s, 1) for one in outcomes] + [(one.ended_s, -1) for one in outcomes])
    points, running = [], 0
    for at_s, change in changes:
        running += change
        points.append((at_s, float(running)))
    return points


def rate_of_texts(outcomes: Sequence[Outcome]) -> list[tuple[float, float]]:
    """Events with text in each second."""
    counts: dict[int, int] = {}
    for one in outcomes:
        for at_s in one.texts_s:
            counts[int(at_s)] = counts.get(int(at_s), 0) + 1
    return [(float(second), float(counts.get(second, 0))) for second in range(max(counts, default=-1) + 1)]


def _figures(summary: Mapping[str, Any]) -> str:
    share = summary["attainment"]
    rows = (
        ("requests", f"{summary['num_requests']} sent, {summary['num_failed']} failed"),
        ("rate", f"{summary['offered_rps']:.2f} offered, {summary['completed_rps']:.2f} completed per second"),
        (
            "goodput",
            f"{summary['goodput_rps']:.2f} per second" + (f" ({share:.1%} kept the SLO)" if share is not None else ""),
        ),
        ("output", f"{summary['output_tokens_per_s']:.1f} tokens per second"),
        ("sent late", f"{summary['num_sent_late']} (the client could not keep up)"),
    )
    cut = f"<p><b>INCOMPLETE</b>: stopped by a signal; {summary['num_dropped']} requests that ran are not counted"
    table = "<table>" + "".join(f"<tr><td>{name}<td>{escape(value)}" for name, value in rows) + "</table>"
    return (cut if summary["cut_short"] else "") + table


def _spreads(summary: Mapping[str, Any]) -> str:
    head = "".join(f"<th>{name}" for name in _COLUMNS)
    body = []
    for label, key, scale, unit in _ROWS:
        values = summary[key]
        cells = "".join(f"<td>{values[name] * scale:.4g}" for name in _COLUMNS) if values else "<td colspan=6>none"
        body.append(f"<tr><td>{label}, {unit}{cells}")
    return f"<table><tr><th>{head}{''.join(body)}</table>"


def _errors(summary: Mapping[str, Any]) -> str:
    if not summary["errors"]:
        return ""
    rows = "".join(f"<tr><td>{escape(error)}<td>{count}" for error, count in summary["errors"].items())
    return f"<h2>Errors</h2><table>{rows}</table>"
