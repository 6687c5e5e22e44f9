"""When the writers of many streams are woken: at once, unless writing would take most of this process's time.

A write costs much the same for one token as for several. Where one round of writes to all streams takes long, the next
one waits three times as long, and texts that come meanwhile go out together; with few streams nothing waits. Knows no
text: who must not wait (a first text, an ending) is not brought here.
"""

import asyncio
from collections.abc import Callable
from time import monotonic

REST = 3.0
"""Rounds of writes take at most a quarter of the time."""
LEAST_ROUND_S = 0.0005
MOST_REST_S = 0.02


class Pace:
    """One per process and loop; `clock` gives seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = monotonic) -> None:
        self._loop, self._clock = loop, clock
        self._waiting: list[asyncio.Future[None]] = []
        self._may_begin_at = 0.0

    def wake(self, writer: "asyncio.Future[None]") -> None:
        """Once per future, which may be done before its turn."""
        self._waiting.append(writer)
        if len(self._waiting) == 1:
            rest_s = self._may_begin_at - self._clock()
            if rest_s > 0:
                self._loop.call_later(rest_s, self._begin)
            else:
                self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        began_at = self._clock()
        waiting, self._waiting = self._waiting, []
        for writer in waiting:
            if not writer.done():
                writer.set_result(None)
        # What they woke runs before this does.
        self._loop.call_soon(self._end, began_at)

    def _end(self, began_at: float) -> None:
        now = self._clock()
        took_s = now - began_at
        if took_s > LEAST_ROUND_S:
            self._may_begin_at = now + min(MOST_REST_S, REST * took_s)
