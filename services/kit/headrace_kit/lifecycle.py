"""Background tasks under supervision, and back-off. Knows no gRPC. Sleep and clock are arguments."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from headrace_kit import telemetry

log = logging.getLogger(__name__)
_crashes = telemetry.counter("task_crashes_total", "Background tasks that ended with an exception", ["task"])
_HEALTHY_S = 30.0


def backoff_s(attempt: int, *, base_s: float = 0.1, cap_s: float = 5.0, spread: float | None = None) -> float:
    """Half to all of min(cap, base * 2**attempt) seconds; ``spread`` in [0, 1] is the jitter, random if absent."""
    return min(cap_s, base_s * 2.0 ** min(attempt, 30)) * (0.5 + 0.5 * (random.random() if spread is None else spread))


def left_s(deadline: float, now: float) -> float:
    """A deadline is a point on a monotonic clock; what travels is the duration that is left."""
    return max(0.0, deadline - now)


async def cancel_and_wait(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels tasks and waits until they have really ended; their outcomes are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def report_crash(name: str, task: "asyncio.Task[Any]") -> None:
    """Of a task that has ended and that nobody awaits: what it raised is logged and counted at once."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task_crashed", exc_info=error, extra={"task": name})
        _crashes.labels(name).inc()


class Supervisor:
    """Runs named background tasks. A crash is logged and counted, then restarted or ends the process, as declared."""

    def __init__(
        self,
        fail: Callable[[str], None],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fail, self._sleep, self._clock = fail, sleep, clock
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(
        self, name: str, work: Callable[[], Awaitable[None]], *, on_crash: Literal["restart", "fail"] = "restart"
    ) -> "asyncio.Task[None]":
        """Runs ``work()`` until it returns; ``name`` is from a closed set, for it labels a metric."""
        assert name not in self._tasks or self._tasks[name].done(), f"task {name} is already running"
        self._tasks[name] = asyncio.create_task(self._run(name, work, on_crash), name=name)
        return self._tasks[name]

    async def stop(self) -> None:
        await cancel_and_wait(*self._tasks.values())

    async def _run(self, name: str, work: Callable[[], Awaitable[None]], on_crash: str) -> None:
        attempt = 0
        while True:
            started = self._clock()
            try:
                return await work()
            except Exception:
                log.exception("task_crashed", extra={"task": name, "on_crash": on_crash})
            _crashes.labels(name).inc()
            if on_crash == "fail":
                return self._fail(f"background task {name} crashed")
            attempt = 0 if self._clock() - started > _HEALTHY_S else attempt + 1
            await self._sleep(backoff_s(attempt))
