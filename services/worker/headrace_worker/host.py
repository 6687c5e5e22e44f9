"""The worker process's hold on its engine process: starts it, speaks with it, notices that it died or hangs, ends it.

    parent ends in any way --> the engine is killed by the kernel, and by its own watch on the pipe
    engine ends in any way --> `run` returns, within moments
    engine stops answering --> `silent_s` grows (a heart beats in a thread of its own); over `kill_after_s` it is killed
    leader of a group is stopped by a signal --> killed as soon as its heart is missed, like any other rank

Knows nothing of gRPC, requests or readiness.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from headrace_worker.config import WorkerConfig
from headrace_worker.messages import Command, Report, Start, Stop
from headrace_worker.wire import AsyncPipe

log = logging.getLogger(__name__)
_STOP_S = 2.0
_LOOK_S = 0.25
_MISSED_S = 1.25
# Compute threads that wait for one another sleep instead of spinning: with any other process on the cores a step is two
# to five times as fast, and the other services keep their turn. The operator's own setting wins.
_ENGINE_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}


class EngineHost:
    """One engine process. `on_report` is called on the event loop with every message, in order."""

    def __init__(
        self,
        config: WorkerConfig,
        on_report: Callable[[Report], None],
        *,
        kill_after_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._on_report, self._clock = config, on_report, clock
        self._kill_after_s = kill_after_s
        self._is_group = config.tp * config.pp > 1
        self._pipe: AsyncPipe | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._heard_s = clock()
        self.ended = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def silent_s(self) -> float:
        """Seconds since the engine process last said anything."""
        return self._clock() - self._heard_s

    def send(self, command: Command) -> None:
        """Lost if the engine has ended; whoever waits for an answer watches `ended`."""
        if self._pipe is not None:
            self._pipe.send(command)

    async def run(self) -> int:
        """Starts the engine and hands on what it says until it ends; returns its exit status."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headrace_worker.child", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                env={**_ENGINE_ENVIRONMENT, **os.environ},
            )
        log.info("engine_started", extra={"engine_pid": self._process.pid})
        self._pipe = pipe = await AsyncPipe.open(ours)
        self._heard_s = self._clock()
        watching = asyncio.create_task(self._kill_if_hung(self._process))
        try:
            pipe.send(Start(self._config))
            while (report := await pipe.receive()) is not None:
                self._heard_s = self._clock()
                self._on_report(report)  # type: ignore[arg-type]
            return await self._reap(self._process)
        finally:
            watching.cancel()
            pipe.close()
            self._kill(self._process)
            self.ended.set()

    async def stop(self) -> None:
        """Asks the engine to leave, and kills it if it does not."""
        if self._process is None or self.ended.is_set():
            return
        self.send(Stop())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self.ended.wait()
        self._kill(self._process)

    async def _reap(self, process: asyncio.subprocess.Process) -> int:
        """The pipe is closed: the process is dead or dying, and must not be waited for in vain."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                return await process.wait()
        self._kill(process)
        return await process.wait()

    async def _kill_if_hung(self, process: asyncio.subprocess.Process) -> None:
        while self.silent_s() < self._kill_after_s:
            if self._is_group and self.silent_s() > _MISSED_S and _is_stopped(process.pid):
                break
            await asyncio.sleep(_LOOK_S)
        log.error("engine_hung", extra={"silent_s": round(self.silent_s(), 1), "engine_pid": process.pid})
        self._kill(process)

    @staticmethod
    def _kill(process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def _is_stopped(pid: int) -> bool:
    """Whether a signal holds a process still (Linux); one that is only busy goes on by itself."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith(("T", "t"))
    except OSError:
        return False
