"""Distributions of token counts, each a quantile function: a draw is `quantile(u)` of a uniform u.

512                                    always
{uniform: [100, 1024]}
{p50: 640, p95: 4096, max: 8192}       log-normal through both quantiles; min and max clamp it
{quantiles: {0: 1, 50: 640, 95: 4096, 99: 9000, 100: 30000}}    a tail of any shape, log-linear between the points
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import NormalDist
from typing import Any, Protocol

from headrace_workload.errors import WorkloadError

MOST_TOKENS = 10_000_000
_NORMAL = NormalDist()
_Z95 = _NORMAL.inv_cdf(0.95)
_MEAN_POINTS = 2000


class Lengths(Protocol):
    """A positive number of tokens at each quantile in [0, 1)."""

    def quantile(self, u: float) -> int:
        """The value that a share `u` of all draws does not exceed."""
        ...


@dataclass(frozen=True)
class Fixed:
    """Always the same."""

    num_tokens: int

    def quantile(self, u: float) -> int:
        return self.num_tokens


@dataclass(frozen=True)
class Uniform:
    """Every whole number from low to high alike."""

    low: int
    high: int

    def quantile(self, u: float) -> int:
        return self.low + int(u * (self.high - self.low + 1))


@dataclass(frozen=True)
class LogNormal:
    """Through p50 and p95, clamped to low..high."""

    p50: float
    p95: float
    low: int
    high: int

    def quantile(self, u: float) -> int:
        sigma = math.log(self.p95 / self.p50) / _Z95
        z = _NORMAL.inv_cdf(min(max(u, 1e-9), 1 - 1e-9))
        return min(self.high, max(self.low, round(self.p50 * math.exp(sigma * z))))


@dataclass(frozen=True)
class Quantiles:
    """Log-linear between (share, tokens) points; the shares rise from 0 to 1."""

    points: tuple[tuple[float, float], ...]

    def quantile(self, u: float) -> int:
        shares = [share for share, _ in self.points]
        right = min(len(shares) - 1, max(1, bisect_left(shares, u)))
        (low, a), (high, b) = self.points[right - 1], self.points[right]
        place = (u - low) / (high - low) if high > low else 1.0
        return max(1, round(math.exp(math.log(a) + place * (math.log(b) - math.log(a)))))


def draw(lengths: Lengths, rng: Random) -> int:
    """One draw."""
    return lengths.quantile(rng.random())


def mean(lengths: Lengths) -> float:
    """The expectation, by the midpoint rule over the quantiles."""
    return sum(lengths.quantile((i + 0.5) / _MEAN_POINTS) for i in range(_MEAN_POINTS)) / _MEAN_POINTS


def read_lengths(value: Any, where: str) -> Lengths:
    """The distribution that a value of a workload file describes; WorkloadError names the field."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Fixed(_tokens(value, where))
    if not isinstance(value, Mapping):
        raise WorkloadError(where, f"expected a number of tokens or a mapping, got {value!r}")
    keys = set(value)
    if keys == {"uniform"}:
        return _uniform(value["uniform"], f"{where}.uniform")
    if keys == {"quantiles"}:
        return _quantiles(value["quantiles"], f"{where}.quantiles")
    if {"p50", "p95"} <= keys <= {"p50", "p95", "min", "max"}:
        return _log_normal(value, where)
    known = "uniform, quantiles, or p50 and p95 with min and max"
    raise WorkloadError(where, f"expected {known}, got {', '.join(sorted(map(str, keys))) or 'nothing'}")


def _uniform(value: Any, where: str) -> Uniform:
    if not isinstance(value, list) or len(value) != 2:
        raise WorkloadError(where, f"expected [low, high], got {value!r}")
    low, high = (_tokens(each, where) for each in value)
    if high < low:
        raise WorkloadError(where, f"{high} is below {low}")
    return Uniform(low, high)


def _log_normal(value: Mapping[str, Any], where: str) -> LogNormal:
    p50, p95 = _tokens(value["p50"], f"{where}.p50"), _tokens(value["p95"], f"{where}.p95")
    low = _tokens(value.get("min", 1), f"{where}.min")
    high = _tokens(value.get("max", MOST_TOKENS), f"{where}.max")
    if not low <= p50 <= p95 <= high:
        raise WorkloadError(where, f"expected min <= p50 <= p95 <= max, got {low}, {p50}, {p95}, {high}")
    return LogNormal(p50, p95, low, high)


def _quantiles(value: Any, where: str) -> Quantiles:
    if not isinstance(value, Mapping) or len(value) < 2:
        raise WorkloadError(where, "expected at least the quantiles 0 and 100")
    points = sorted(
        (_percent(percent, where) / 100, float(_tokens(num_tokens, f"{where}.{percent}")))
        for percent, num_tokens in value.items()
    )
    if points[0][0] != 0 or points[-1][0] != 1:
        raise WorkloadError(where, "the quantiles must begin with 0 and end with 100")
    if any(later[1] < earlier[1] for earlier, later in pairwise(points)):
        raise WorkloadError(where, "a higher quantile may not be shorter")
    return Quantiles(tuple(points))


def _percent(value: Any, where: str) -> float:
    """JSON has no keys but text."""
    try:
        percent = float(value)
    except (TypeError, ValueError):
        percent = math.nan
    if not 0 <= percent <= 100:
        raise WorkloadError(where, f"expected percents from 0 to 100, got {value!r}")
    return percent


def _tokens(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOKENS:
        raise WorkloadError(where, f"expected a whole number from 1 to {MOST_TOKENS}, got {value!r}")
    return value
