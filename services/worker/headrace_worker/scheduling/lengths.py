"""How long outputs turn out to be, learned from those that have ended. Pure; knows no request and no page.

Lengths are counted in geometric bins, and a bin stands for its longest length, so that the error is on the safe side.
Old counts fade. Before anything was seen a few imagined choices run to their limit: what is not known is expected in
full.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

_RATIO = 1.2
_LONGEST = 1 << 20
# Imagined choices that run to their limit.
_PRIOR_WEIGHT = 4.0
# Counts are halved when there are so many: a change of traffic is learned within a few thousand choices.
_HALVE_AT = 2048.0
# Answers are kept for so many observations.
_STALE_AFTER = 16


class Moments(NamedTuple):
    """Mean and variance of a number of tokens."""

    mean: float
    variance: float


def _make_edges() -> list[int]:
    edges = [1]
    while edges[-1] < _LONGEST:
        edges.append(max(edges[-1] + 1, int(edges[-1] * _RATIO)))
    return edges


_EDGES = _make_edges()


class LengthDistribution:
    """Bin i holds lengths above edge i - 1, up to and with edge i."""

    def __init__(self) -> None:
        self._counts = [0.0] * len(_EDGES)
        self._total = 0.0
        self._num_stale = 0
        self._known: dict[tuple[int, int], Moments] = {}

    def observe(self, num_tokens: int) -> None:
        """A choice has ended by itself or at its limit, with so many tokens."""
        self._counts[min(bisect_left(_EDGES, num_tokens), len(_EDGES) - 1)] += 1.0
        self._total += 1.0
        if self._total >= _HALVE_AT:
            self._counts = [count / 2 for count in self._counts]
            self._total /= 2
        self._num_stale += 1
        if self._num_stale >= _STALE_AFTER:
            self._known.clear()
            self._num_stale = 0

    def remaining(self, num_done: int, limit: int) -> Moments:
        """Tokens that a choice with `num_done` of at most `limit` tokens has yet to come."""
        if num_done >= limit:
            return Moments(0.0, 0.0)
        first = bisect_left(_EDGES, num_done + 1)
        key = first, limit
        whole = self._known.get(key)
        if whole is None:
            whole = self._known[key] = self._whole(first, limit)
        return Moments(max(0.0, whole.mean - num_done), whole.variance)

    def _whole(self, first: int, limit: int) -> Moments:
        """Of the whole length, if it is beyond the bins before `first`."""
        weight, total, squares = _PRIOR_WEIGHT, _PRIOR_WEIGHT * limit, _PRIOR_WEIGHT * limit * limit
        for index in range(first, len(_EDGES)):
            count = self._counts[index]
            if count:
                length = min(_EDGES[index], limit)
                weight += count
                total += count * length
                squares += count * length * length
        mean = total / weight
        return Moments(mean, max(0.0, squares / weight - mean * mean))
