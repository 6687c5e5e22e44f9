"""The virtual clock: calls at times, in order of time and then of being asked for. Knows nothing of what is called."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class Clock:
    """`now` is in seconds and only moves forward, to the time of the next call."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_calls = 0
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    def at(self, at_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call then, or at once if that is over."""
        heapq.heappush(self._calls, (max(at_s, self.now), next(self._order), call, arguments))

    def after(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + delay_s, call, *arguments)

    def stop(self) -> None:
        """Call nothing more: what is left is about things that are over."""
        self._calls.clear()

    def run(self, until_s: float = float("inf")) -> None:
        """Until nothing is left to call, or only what lies beyond `until_s`."""
        calls = self._calls
        while calls and calls[0][0] <= until_s:
            self.now, _, call, arguments = heapq.heappop(calls)
            self.num_calls += 1
            call(*arguments)
