"""A run as a page that people can look at: one HTML file with drawings (SVG) and no script. Draws, computes nothing."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace_sim.report import to_table

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 860, 190, 64, 24, 12
_COLOURS = ("#1f6fb4", "#d1662b", "#3c8d40", "#8a4fa3", "#b03a48")
_MOST_POINTS = 800
_STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:900px;color:#222}"
    "pre{background:#f5f5f2;padding:1rem;overflow-x:auto}h2{font-size:1rem;margin:1.6rem 0 .2rem}"
    "svg text{font-size:11px}"
)


@dataclass(frozen=True)
class Line:
    """One quantity over x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


def plot(title: str, lines: Sequence[Line], x_label: str) -> str:
    """Lines (or dots) over one pair of axes that begin at zero."""
    x_max = max((max(line.x, default=0) for line in lines), default=0) or 1.0
    y_max = max((max(line.y, default=0) for line in lines), default=0) or 1.0
    drawn = [f"<h2>{html.escape(title)}</h2>", f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%">']
    for share in (0.0, 0.5, 1.0):
        y = _y(share * y_max, y_max)
        drawn.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        drawn.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share * y_max:.4g}</text>')
        x = _x(share * x_max, x_max)
        drawn.append(f'<text x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{share * x_max:.4g}</text>')
    for index, line in enumerate(lines):
        colour = _COLOURS[index % len(_COLOURS)]
        drawn.append(_marks(line, x_max, y_max, colour))
        place = f'x="{_LEFT + 8 + 150 * index}" y="{_TOP + 2}"'
        drawn.append(f'<text {place} fill="{colour}">{html.escape(line.name)}</text>')
    drawn.append(f'<text x="{_WIDTH - 4}" y="{_HEIGHT - 6}" text-anchor="end">{html.escape(x_label)}</text></svg>')
    return "\n".join(drawn)


def page(title: str, text: str, drawings: Sequence[str]) -> str:
    """The whole file: a table as text, then drawings."""
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    body = f"<h1>{html.escape(title)}</h1><pre>{html.escape(text)}</pre>"
    return f"{head}<style>{_STYLE}</style>{body}{''.join(drawings)}</html>\n"


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


def _marks(line: Line, x_max: float, y_max: float, colour: str) -> str:
    stride = max(1, len(line.x) // _MOST_POINTS)
    points = [
        (_x(x, x_max), _y(y, y_max)) for x, y in zip(line.x[::stride], line.y[::stride], strict=True) if y is not None
    ]
    if line.dots:
        return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _x(value: float, most: float) -> float:
    return _LEFT + value / most * (_WIDTH - _LEFT - 8)


def _y(value: float, most: float) -> float:
    return _HEIGHT - _BOTTOM - value / most * (_HEIGHT - _BOTTOM - _TOP - 8)
