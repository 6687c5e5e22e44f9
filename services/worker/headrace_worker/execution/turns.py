"""A bounded queue in which keys take turns: one that fills its share delays itself, not the others.

Pure; not thread-safe. Knows not what waits.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Turns(Generic[_Item]):
    """At most `limit` items, at most half of them of one key."""

    def __init__(self, limit: int) -> None:
        self._limit, self._limit_of_key = limit, max(1, limit // 2)
        self._queues: OrderedDict[str, deque[_Item]] = OrderedDict()
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def refusal(self, key: str) -> str | None:
        """Why one more of this key may not wait: its own share first, then the room."""
        if len(self._queues.get(key, ())) >= self._limit_of_key:
            return "share_exceeded"
        return "busy" if self._num >= self._limit else None

    def put(self, key: str, item: _Item) -> None:
        """There must be no refusal."""
        self._queues.setdefault(key, deque()).append(item)
        self._num += 1

    def take(self) -> _Item:
        """The first of the key whose turn it is; there must be one."""
        key, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[key] = queue  # to the end of the round
        self._num -= 1
        return item
