"""Whose turn it is: a virtual token counter per fair key.

Algorithm: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), VTC with weights. The key with the
smallest counter goes first; serving it raises its counter by tokens / weight; a key that was idle starts no lower than
the least of those that waited meanwhile, so that idleness earns no credit. Does not know requests or queues.
"""

from __future__ import annotations

import heapq

# A generated token costs about twice a prompt token (the paper's setting).
PROMPT_TOKEN_COST = 1.0
OUTPUT_TOKEN_COST = 2.0
_MIN_FORGET = 1024


class VirtualTokens:
    """Counters of all keys that wait or were lately served. `enter` and `leave` bracket each waiting request."""

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        # (counter when pushed, key), one per key; counters only rise: a stale entry is corrected when it surfaces, and
        # that of a key that left stays until then, for its next request.
        self._heap: list[tuple[float, str]] = []
        self._in_heap: set[str] = set()
        self._floor = 0.0
        self._last_left = ""
        self._forget_at = _MIN_FORGET

    def __getitem__(self, key: str) -> float:
        return self._counters.get(key, 0.0)

    def enter(self, key: str) -> None:
        """One more request of `key` waits."""
        count = self._waiting.get(key, 0)
        if count:
            self._waiting[key] = count + 1
            return
        if not self._waiting:
            # The room was empty: start where the key that left it last is now.
            self._floor = max(self._floor, self._counters.get(self._last_left, 0.0))
        least = self._least()
        self._waiting[key] = 1
        counter = max(self._counters.get(key, 0.0), least)
        self._counters[key] = counter
        if key not in self._in_heap:
            self._in_heap.add(key)
            heapq.heappush(self._heap, (counter, key))

    def leave(self, key: str) -> None:
        """One waiting request fewer, served or not."""
        count = self._waiting[key] - 1
        if count:
            self._waiting[key] = count
            return
        self._least()
        del self._waiting[key]
        self._last_left = key
        if len(self._counters) > self._forget_at:
            self._forget()

    def charge(self, key: str, cost: float, weight: float) -> None:
        """`key` was served tokens worth `cost`."""
        self._counters[key] = self._counters.get(key, self._floor) + cost / weight

    def _least(self) -> float:
        """The virtual time: the smallest counter of a waiting key; it never goes back."""
        heap = self._heap
        while heap:
            counter, key = heap[0]
            if key not in self._waiting:
                heapq.heappop(heap)
                self._in_heap.discard(key)
            elif counter < self._counters[key]:
                heapq.heapreplace(heap, (self._counters[key], key))
            else:
                self._floor = max(self._floor, counter)
                break
        return self._floor

    def _forget(self) -> None:
        """Drop keys that would re-enter at the floor anyway, so that the table is bounded by who is active."""
        floor = self._floor
        self._counters = {
            key: counter for key, counter in self._counters.items() if counter > floor or key in self._waiting
        }
        self._forget_at = max(_MIN_FORGET, 2 * len(self._counters))
