"""How long a transfer takes, learnt from those that were: seconds = latency + bytes / rate. Pure.

Least squares over the last transfers; sizes that hardly differ say nothing of the latency: it then stays what it was.
"""

from __future__ import annotations

from collections import deque

_NUM_KEPT = 64
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
        num = len(self._samples)
        mean_bytes = sum(size for size, _ in self._samples) / num
        mean_s = sum(seconds for _, seconds in self._samples) / num
        spread = sum((size - mean_bytes) ** 2 for size, _ in self._samples) / num
        if spread > (_LEAST_SPREAD * mean_bytes) ** 2:
            shared = sum((size - mean_bytes) * (seconds - mean_s) for size, seconds in self._samples) / num
            slope = shared / spread
            if slope <= 0:  # their size does not show in their time: all of it is latency
                self.latency_s, self.bytes_per_s = mean_s, max(self._guess, mean_bytes / mean_s)
                return
            self.latency_s = max(0.0, mean_s - slope * mean_bytes)
        rest_s = mean_s - self.latency_s
        if rest_s <= 0:
            self.latency_s, rest_s = 0.0, mean_s
        self.bytes_per_s = mean_bytes / rest_s
