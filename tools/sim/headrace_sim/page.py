"""A run as a page that people can look at. Draws, computes nothing."""

from typing import Any

from headrace_sim.report import to_table
from headrace_worker.perf.drawing import Line, page, plot


def to_html(title: str, summary: dict[str, Any]) -> str:
    """The page of a simulation, from its JSON."""
    timeline = summary["timeline"]
    at_s = timeline["at_s"]
    step_s = at_s[1] - at_s[0] if len(at_s) > 1 else 1.0
    drawings = [
        plot("Arrivals per second", [Line("arrivals", at_s, [each / step_s for each in timeline["arrivals"]])], "s"),
        plot("Replicas", [Line(name, at_s, timeline[name]) for name in ("ready", "wanted")], "s"),
        plot("Requests in replicas", [Line(name, at_s, timeline[name]) for name in ("running", "waiting")], "s"),
        plot("Oldest wait", [Line("seconds", at_s, timeline["queue_age_s"])], "s"),
        plot("KV memory", [Line(name, at_s, timeline[f"{name}_share"]) for name in ("held", "promised")], "s"),
    ]
    return page(title, to_table(summary), drawings)
