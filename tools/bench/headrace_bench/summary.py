"""The figures of a run: percentiles, rates, goodput. Pure.

Names and definitions are those of the field: TTFT from sending to the first text; ITL between two events with text;
TPOT the time after the first token divided by the tokens after it; percentiles by linear interpolation.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_bench.load import Run
from headrace_bench.outcome import Outcome

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Slo:
    """What a request has to keep to count as good; None asks for nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    latency_s: float | None = None

    def met_by(self, one: Outcome) -> bool:
        pairs = ((self.ttft_s, one.ttft_s), (self.tpot_s, one.tpot_s), (self.latency_s, one.latency_s))
        return one.ok and all(limit is None or got is None or got <= limit for limit, got in pairs)


def percentile(values: Sequence[float], share: float) -> float:
    """Of sorted values, `share` from 0 to 100, between the two nearest."""
    assert values, "there is no percentile of nothing"
    place = (len(values) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def spread(values: Iterable[float]) -> dict[str, float]:
    """Mean, percentiles and extremes; empty for no values."""
    found = sorted(values)
    if not found:
        return {}
    return {
        "mean": sum(found) / len(found),
        "min": found[0],
        **{f"p{share}": percentile(found, share) for share in PERCENTILES},
        "max": found[-1],
        "count": len(found),
    }


def summarize(run: Run, slo: Slo) -> dict[str, Any]:
    """Everything the report says, seconds and tokens, ready for JSON."""
    good = [one for one in run.outcomes if one.ok]
    elapsed_s = max(run.elapsed_s, 1e-9)
    return {
        "num_requests": len(run.outcomes),
        "num_completed": len(good),
        "num_failed": len(run.outcomes) - len(good),
        "errors": dict(Counter(one.error for one in run.outcomes if one.error).most_common(10)),
        "num_sent_late": run.num_late,
        "cut_short": run.cut_short,
        "num_dropped": run.num_dropped,
        "elapsed_s": run.elapsed_s,
        "offered_rps": _offered_rps(run),
        "completed_rps": len(good) / elapsed_s,
        "prompt_tokens": sum(one.num_prompt for one in good),
        "cached_tokens": sum(one.num_cached for one in good),
        "output_tokens": sum(one.num_output for one in good),
        "output_tokens_per_s": sum(one.num_output for one in good) / elapsed_s,
        "goodput_rps": sum(slo.met_by(one) for one in run.outcomes) / elapsed_s,
        "attainment": sum(slo.met_by(one) for one in run.outcomes) / len(run.outcomes) if run.outcomes else None,
        "ttft_s": spread(one.ttft_s for one in good if one.ttft_s is not None),
        "itl_s": spread(gap for one in good for gap in one.gaps_s),
        "tpot_s": spread(one.tpot_s for one in good if one.tpot_s is not None),
        "latency_s": spread(one.latency_s for one in good),
        "output_tokens_each": spread(float(one.num_output) for one in good),
    }


def _offered_rps(run: Run) -> float:
    """Requests over the time in which they were due."""
    last_s = max((one.due_s for one in run.outcomes), default=0.0)
    return (len(run.outcomes) - 1) / last_s if last_s else 0.0
