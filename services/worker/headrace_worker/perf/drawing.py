"""Plots as SVG in one HTML file, without script or library. Draws what it is given; computes nothing."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 860, 190, 64, 24, 12
_COLOURS = (
    *("#1f6fb4", "#d1662b", "#3c8d40", "#8a4fa3", "#b03a48"),
    *("#157f8c", "#8a6d1f", "#c2489b", "#5b6b7a", "#6b4a2b"),
)
# Names of lines stand this far apart where there is room.
_NAME_STEP = 190
_MOST_POINTS = 800
_STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;padding:0 1rem;max-width:900px;color:#222}"
    "pre{background:#f5f5f2;padding:1rem;overflow-x:auto}h2{font-size:1rem;margin:1.6rem 0 .2rem}"
    "svg text{font-size:11px}.plot{overflow-x:auto}.plot svg{min-width:40rem}"
)


@dataclass(frozen=True)
class Line:
    """One quantity over x; `dots` instead of a line; `labels` stand beside the points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False
    labels: Sequence[str] = ()


def plot(title: str, lines: Sequence[Line], x_label: str, height: int = _HEIGHT) -> str:
    """Lines (or dots) over one pair of axes that begin at zero."""
    x_max = max((max(line.x, default=0) for line in lines), default=0) or 1.0
    y_max = max((max(line.y, default=0) for line in lines), default=0) or 1.0
    drawn = [f"<h2>{html.escape(title)}</h2>", f'<svg viewBox="0 0 {_WIDTH} {height}" width="100%">']
    for share in (0.0, 0.5, 1.0):
        y = _y(share * y_max, y_max, height)
        drawn.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        drawn.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share * y_max:.4g}</text>')
        x, unit = _x(share * x_max, x_max), f" {html.escape(x_label)}" if share == 1 else ""
        drawn.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle">{share * x_max:.4g}{unit}</text>')
    step = min(_NAME_STEP, (_WIDTH - _LEFT - 8) // max(1, len(lines)))
    for index, line in enumerate(lines):
        colour = _COLOURS[index % len(_COLOURS)]
        drawn.append(_marks(line, (x_max, y_max), colour, height))
        place = f'x="{_LEFT + 8 + step * index}" y="{_TOP + 2}"'
        drawn.append(f'<text {place} fill="{colour}">{html.escape(line.name)}</text>')
    return "\n".join([*drawn, "</svg>"])


def page(title: str, text: str, drawings: Sequence[str]) -> str:
    """The whole file: a table as text, then drawings."""
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f"<title>{html.escape(title)}</title>"
    body = f"<h1>{html.escape(title)}</h1><pre>{html.escape(text)}</pre>"
    plots = "".join(f'<div class="plot">{drawing}</div>' for drawing in drawings)
    return f"{head}<style>{_STYLE}</style>{body}{plots}</html>\n"


def _marks(line: Line, most: tuple[float, float], colour: str, height: int) -> str:
    stride = max(1, len(line.x) // _MOST_POINTS)
    pairs = list(zip(line.x, line.y, strict=True))[::stride]
    points = [(_x(x, most[0]), _y(y, most[1], height)) for x, y in pairs]
    named = zip(points, line.labels, strict=False)
    labels = "".join(f'<text x="{x + 5:.1f}" y="{y - 4:.1f}">{html.escape(label)}</text>' for (x, y), label in named)
    if line.dots:
        return labels + "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'{labels}<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _x(value: float, most: float) -> float:
    return _LEFT + value / most * (_WIDTH - _LEFT - 60)


def _y(value: float, most: float, height: int) -> float:
    return height - _BOTTOM - value / most * (height - _BOTTOM - _TOP - 8)
