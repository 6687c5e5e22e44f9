"""One supervised process: started, its output kept in a log, started again with back-off when it dies."""

import asyncio
import ctypes
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace_kit.lifecycle import backoff_s

_HEALTHY_S = 10.0
_MAX_LAST_LINES = 20
_MAX_LOG_BYTES = 16 * 1024 * 1024
_PR_SET_PDEATHSIG = 1


class ManagedProcess:
    """Keeps ``command()`` running until ``stop``. Exit codes 2 and 3 mean that another try cannot help."""

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        log: Path,
        give_up: Callable[[str], None],
        on_death: Callable[[str, int], None] = lambda name, in_a_row: None,
    ) -> None:
        self.name = name
        self._command, self._log, self._give_up, self._on_death = command, log, give_up, on_death
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running(), name=self.name)

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL once ``grace_s`` seconds have passed."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        if self._task is not None:
            ended, _ = await asyncio.wait((self._task,), timeout=grace_s)
            if not ended:
                self._signal(signal.SIGKILL)
            await self._task

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def _keep_running(self) -> None:
        attempt = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                code = await self._run_once()
            except OSError as fault:  # neither a process nor a file descriptor is to be had just now
                _say(f"{self.name} could not be started: {fault}")
                code = 1
            if self._stopping.is_set():
                return
            if code in (2, 3):
                return self._give_up(f"{self.name} cannot start: {last_words(self._log)}")
            attempt = 0 if code == 0 or time.monotonic() - started > _HEALTHY_S else attempt + 1
            self._on_death(self.name, attempt)
            _say(f"{self.name} ended with code {code}; starting it again")
            await self._pause(backoff_s(attempt) if attempt else 0.0)

    async def _run_once(self) -> int:
        if self._log.exists() and self._log.stat().st_size > _MAX_LOG_BYTES:
            self._log.replace(self._log.with_suffix(".log.1"))
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        _say(f"{self.name} runs as {self._process.pid}")
        if self._stopping.is_set():  # asked for while it was being started
            self._signal(signal.SIGTERM)
        return await self._process.wait()

    async def _pause(self, duration_s: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), duration_s)
        except TimeoutError:
            return


def last_words(log: Path) -> str:
    """What a process wrote for people at its end: the last lines that are no JSON, or the last line."""
    lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
    plain = list(itertools.takewhile(lambda line: not line.startswith("{"), reversed(lines[-_MAX_LAST_LINES:])))
    return "\n".join(reversed(plain)) or (lines[-1] if lines else "it said nothing")


def _die_with_parent() -> None:
    """A supervisor that is killed outright takes its processes along, so that none is left unsupervised."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _say(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} [{os.getpid()}] {text}", file=sys.stderr, flush=True)
