"""Line plots as SVG, for a report that opens anywhere. Draws what it is given; knows no request."""

import math
from collections.abc import Sequence
from html import escape

Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 30, 40
_COLOURS = ("#2563eb", "#dc2626", "#16a34a", "#9333ea", "#d97706")


def line_plot(title: str, x_label: str, y_label: str, lines: Sequence[tuple[str, Points]]) -> str:
    """One SVG element. Lines without points are left out; the axes begin at 0."""
    shown = [(name, points) for name, points in lines if points]
    most_x = _round_up(max((x for _, points in shown for x, _ in points), default=1.0))
    most_y = _round_up(max((y for _, points in shown for _, y in points), default=1.0))
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="18" class="title">{escape(title)}</text>',
        *_axes(most_x, most_y, x_label, y_label),
    ]
    for index, (name, points) in enumerate(shown):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(f"{_x(x, most_x):.1f},{_y(y, most_y):.1f}" for x, y in _thinned(points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if name:
            parts.append(
                f'<text x="{_WIDTH - _RIGHT}" y="{18 + 14 * index}" fill="{colour}" class="key">{escape(name)}</text>'
            )
    return "".join([*parts, "</svg>"])


def cumulative(values: Sequence[float]) -> list[tuple[float, float]]:
    """Each value with the share (in %) of values that are no larger."""
    found = sorted(values)
    return [(value, 100 * (index + 1) / len(found)) for index, value in enumerate(found)]


def _axes(most_x: float, most_y: float, x_label: str, y_label: str) -> list[str]:
    parts = []
    for step in range(5):
        x, y = most_x * step / 4, most_y * step / 4
        parts.append(f'<text x="{_x(x, most_x):.1f}" y="{_HEIGHT - 22}" class="tick">{x:g}</text>')
        parts.append(f'<text x="{_LEFT - 6}" y="{_y(y, most_y) + 4:.1f}" class="mark">{y:g}</text>')
        at = _y(y, most_y)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" class="tick">{escape(x_label)}</text>')
    parts.append(
        f'<text x="12" y="{_HEIGHT / 2}" transform="rotate(-90 12 {_HEIGHT / 2})" class="tick">{escape(y_label)}</text>'
    )
    return parts


def _x(value: float, most: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / most


def _y(value: float, most: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / most


def _round_up(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * (1 + 1e-9))


def _thinned(points: Points, most: int = 600) -> Points:
    if len(points) <= most:
        return points
    return [points[len(points) * index // most] for index in range(most)] + [points[-1]]
