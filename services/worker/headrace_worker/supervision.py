"""Keeps watch over the engine process: hears its reports, tells a stall from work, and what follows when it ends.

Knows the replica, the dispatch and the host; not who asks about them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from headrace.v1 import worker_pb2
from headrace_worker.config import WorkerConfig
from headrace_worker.dispatch import Dispatch
from headrace_worker.engine import EngineOutput
from headrace_worker.host import EngineHost
from headrace_worker.kv_sources import Sources
from headrace_worker.messages import Alive, Broke, Flush, PageList, PagesReady, Phase, Ready, Report
from headrace_worker.replica import Replica
from headrace_worker.watch import PageLog

log = logging.getLogger(__name__)
SILENT_S = 1.5
_LOOK_S = 0.25
_FAREWELL_S = 2.0


class Supervision:
    """Owns the engine process and everything that follows from what it says."""

    def __init__(self, config: WorkerConfig, replica: Replica, clock: Callable[[], float] = time.monotonic) -> None:
        self.replica = replica
        self.host = EngineHost(config, self._hear, clock=clock)
        self.dispatch = Dispatch(replica, self.host.send, clock)
        self.pages = PageLog(self.host.send)
        self.sources = Sources(replica, self.host.send, self.dispatch.attempts.reserve_handles, clock)
        self.on_look: Callable[[], None] = lambda: None
        self._clock = clock
        self._due_s = float("inf")
        self._cache_epoch = 1
        self.broke: str | None = None

    async def run(self) -> None:
        """Runs the engine until it ends. Returns when its sequences have their finals and those had time to go out."""
        status = await self.host.run()
        log.error("engine_ended", extra={"exit_status": status})
        self.replica.leave()
        self.dispatch.lose_engine()
        until_s = self._clock() + _FAREWELL_S
        while len(self.dispatch.attempts) and self._clock() < until_s:  # noqa: ASYNC110  this happens once in a life
            await asyncio.sleep(_LOOK_S / 5)

    async def look(self) -> None:
        """For ever: is the engine silent or stuck, and may orphans go to somebody else by now?"""
        while True:
            silent = self.host.silent_s() > SILENT_S
            self.replica.note_stall(silent or self._clock() > self._due_s)
            self.dispatch.offer_orphans()
            self.sources.look()
            self.on_look()
            await asyncio.sleep(_LOOK_S)

    def flush(self) -> str:
        """Empties the prefix cache; returns the new epoch."""
        self._cache_epoch += 1
        self.host.send(Flush(self._cache_epoch))
        self.replica.note_flush()
        return self.replica.epoch

    def _hear(self, report: Report) -> None:
        if isinstance(report, EngineOutput):
            if report.pages is not None:
                self.pages.extend(report.pages)
            self.dispatch.deliver(report)
            self.sources.note_events(report)
        elif isinstance(report, PagesReady):
            self.sources.note(report)
        elif isinstance(report, Alive):
            self._due_s = report.due_s
        elif isinstance(report, Phase):
            self.replica.note_phase(report)
        elif isinstance(report, Ready):
            self.replica.note_ready(report)
            self.dispatch.steps.roofline = report.description.roofline
            log.info("engine_ready", extra={"startup_s": report.startup_s, **_sizes(self.replica.describe())})
        elif isinstance(report, PageList):
            self.pages.note_list(report)
        else:
            assert isinstance(report, Broke), f"unknown report {report!r}"
            self.broke = report.detail
            log.error("engine_broke", extra={"detail": report.detail, "exception": report.traceback})


def _sizes(described: worker_pb2.Description) -> dict[str, int]:
    """What was measured, for the log."""
    return {
        "weight_bytes": described.weight_bytes,
        "workspace_bytes": described.workspace_bytes,
        "kv_pool_bytes": described.kv_pool_bytes,
        "num_pages": described.num_pages,
        "num_full_reservations": described.num_full_reservations,
    }
