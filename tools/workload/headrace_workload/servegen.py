"""A workload made of the ServeGen statistics: rates per window, token histograms. Rates are held within a window.

Clients are superposed: arrivals of the sum are Poisson within a window, which is smoother than any one client.
Lengths are drawn from the published mixtures, prompt and output independently (joint lengths are not published).
"""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace_workload.arrivals import Phase
from headrace_workload.errors import WorkloadError
from headrace_workload.lengths import Quantiles
from headrace_workload.spec import Kind, Workload

WINDOW_S = 600.0
DAY_S = 86_400.0


def servegen_phases(rates: Path, start_s: float, end_s: float, share: float = 1.0) -> tuple[Phase, ...]:
    """Windows from `start_s` to `end_s` of a `*_total_rate_10min` file, each rate times `share`."""
    rows = {float(row["t_s"]): float(row["total_rate_rps"]) for row in _rows(rates)}
    times = sorted(each for each in rows if start_s <= each < end_s)
    if not times:
        raise WorkloadError(str(rates), f"has no window from {start_s:g} to {end_s:g} s")
    return tuple(Phase(WINDOW_S, rows[each] * share, rows[each] * share) for each in times)


def servegen_lengths(histograms: Path, model: str, field: str) -> Quantiles:
    """The mixture of one model, `input_tokens` or `output_tokens`, as a quantile function."""
    points, total = [(0.0, 1.0)], 0.0
    for row in _rows(histograms):
        if row["model"] != model or row["field"] != field or float(row["value_hi"]) < 1:
            continue
        share = float(row["probability"])
        if share <= 0:
            continue
        total += share
        points.append((total, float(row["value_hi"])))
    if len(points) < 2:
        raise WorkloadError(str(histograms), f"has no {field} of {model}")
    return Quantiles(tuple((share / total, tokens) for share, tokens in points))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from csv.DictReader(lines)
    except OSError as error:
        raise WorkloadError(str(path), f"cannot be read: {error}") from None


def servegen_workload(folder: Path, name: str, model: str, span_s: tuple[float, float], **options: Any) -> Workload:
    """`name` is ServeGen's model (m-large), `model` what requests ask for; options: share, max_output, slo_class."""
    phases = servegen_phases(folder / f"{name}_total_rate_10min.csv.gz", *span_s, share=options.get("share", 1.0))
    histograms = folder / "mixture_length_histograms.csv.gz"
    kind = Kind(
        model=model,
        prompt=servegen_lengths(histograms, name, "input_tokens"),
        output=servegen_lengths(histograms, name, "output_tokens"),
        max_output=options.get("max_output", 2048),
        slo_class=options.get("slo_class", ""),
    )
    return Workload(f"servegen-{name}", phases, (kind,))
