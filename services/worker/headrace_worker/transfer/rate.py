"""How long a transfer takes, learnt from those that were: seconds = latency + bytes / rate. Pure.

The median of the slopes between any two of the last transfers (Theil 1950, Sen 1968), so that those few that had to
wait for a processor do not count. Sizes that hardly differ say nothing of the latency: it then stays what it was.
"""

from __future__ import annotations

from collections import deque
from itertools import combinations
from statistics import median

_NUM_KEPT = 32
_LEAST_SPREAD = 0.05


class TransferRate:
    """Begins with a guess that the first transfers replace."""

    def __init__(self, bytes_per_s: float = 1e9, latency_s: float = 0.01) -> None:
        self.bytes_per_s, self.latency_s = bytes_per_s, latency_s
        self._guess = bytes_per_s
        self.num_samples = 0
        self._samples: deque[tuple[float, float]] = deque(maxlen=_NUM_KEPT)

    def add(self, num_bytes: int, seconds: float) -> None:
        """A transfer that went well, without the time that its pages were waited for."""
        if num_bytes <= 0 or seconds <= 0:
            return
        self.num_samples += 1
        self._samples.append((float(num_bytes), seconds))
        self._fit()

    def seconds(self, num_bytes: int) -> float:
        return self.latency_s + num_bytes / self.bytes_per_s

    def _fit(self) -> None:
        sizes, times_s = zip(*self._samples, strict=True)
        size, time_s = median(sizes), median(times_s)
        slopes = [
            (after_s - before_s) / (larger - smaller)
            for (smaller, before_s), (larger, after_s) in combinations(self._samples, 2)
            if abs(larger - smaller) > _LEAST_SPREAD * size
        ]
        slope = median(slopes) if slopes else None
        if slope is not None:
            rest_s = [took_s - slope * num_bytes for num_bytes, took_s in self._samples]
            self.latency_s = time_s if slope <= 0 else max(0.0, median(rest_s))
        if slope is not None and slope <= 0:  # their size does not show in their time: all of it is latency
            self.bytes_per_s = max(self._guess, size / time_s)
            return
        if self.latency_s >= time_s:
            self.latency_s = 0.0
        self.bytes_per_s = size / (time_s - self.latency_s)
