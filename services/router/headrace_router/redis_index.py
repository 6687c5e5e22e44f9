"""Look-ups in the prefix index in Redis: one round trip a decision.

Redis away costs some decisions LOOK_UP_S and then nothing: nobody asks while it is left alone. Knows no replica.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from redis.exceptions import RedisError

from headrace_kit import telemetry
from headrace_router.prefix_index import Group, leading_runs, page_values
from headrace_router.redis_link import Script

log = logging.getLogger(__name__)
# A hint is not worth more waiting than this; what it would have saved is a prefill.
LOOK_UP_S = 0.005
PAUSE_S = 1.0
_MOST_LATE = 3
_looked_up = telemetry.counter("prefix_lookups_total", "Look-ups in the prefix index by result", ["result"])
_seconds = telemetry.histogram("prefix_lookup_seconds", "Time of look-ups that were answered")


def key_prefix(kv_context: bytes) -> bytes:
    """What the names of all keys of one KV context begin with; braces keep them together on a cluster."""
    return b"hr:prefix:{" + kv_context.hex().encode() + b"}:"


class RedisIndex:
    """The port `PrefixIndex`."""

    def __init__(
        self, client: Any, *, look_up_s: float = LOOK_UP_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._script, self._look_up_s, self._clock = Script(client, "index_read.lua"), look_up_s, clock
        self._blocked_until, self._num_late = float("-inf"), 0
        self._running: set[asyncio.Task[dict[bytes, int]]] = set()

    async def hits(self, chain: bytes, groups: Iterable[Group]) -> Mapping[bytes, int]:
        """Prompt tokens that can be hit, by record; nothing if Redis does not answer in time."""
        asked = [(group, values) for group in groups if (values := page_values(chain, group.page_tokens))]
        if not asked:
            return {}
        started = self._clock()
        if started < self._blocked_until:
            _looked_up.labels("skipped").inc()
            return {}
        # A look-up that is late is left alone: to cancel it would cost its connection.
        task = asyncio.create_task(self._find(asked), name="prefix look-up")
        self._running.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait([task], timeout=self._look_up_s)
        if not task.done():
            self._late()
            return {}
        if task.exception() is not None:
            return {}
        _looked_up.labels("answered").inc()
        _seconds.observe(self._clock() - started)
        self._num_late = 0
        return task.result()

    async def _find(self, asked: list[tuple[Group, bytes]]) -> dict[bytes, int]:
        calls = [([key_prefix(group.kv_context)], [values]) for group, values in asked]
        found = [await self._script.run(*calls[0])] if len(calls) == 1 else await self._script.run_all(calls)
        hits: dict[bytes, int] = {}
        for (group, _), rows in zip(asked, found, strict=True):
            hits.update((record, run * group.page_tokens) for record, run in leading_runs(rows).items())
        return hits

    def _ended(self, task: asyncio.Task[dict[bytes, int]]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if not isinstance(error, (RedisError, OSError, TimeoutError)):
            raise error
        self._leave_alone(str(error))

    def _late(self) -> None:
        _looked_up.labels("late").inc()
        self._num_late += 1
        if self._num_late >= _MOST_LATE:
            self._leave_alone(f"no answer within {self._look_up_s * 1000:g} ms")

    def _leave_alone(self, reason: str) -> None:
        _looked_up.labels("failed").inc()
        log.warning("prefix_index_away", extra={"detail": reason, "pause_s": PAUSE_S})
        self._num_late, self._blocked_until = 0, self._clock() + PAUSE_S
