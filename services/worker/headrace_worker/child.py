"""The engine process: loads, warms up, then steps the engine until told to leave. Never outlives the worker process.

Run as `python -m headrace_worker.child FD`. Knows neither gRPC nor readiness. Three threads: the main one loads and
computes, one reads commands and ends the process when the pipe closes, one sends signs of life.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from types import TracebackType

from headrace.v1.prefix_chain import hash_block
from headrace_worker.build import begin_background, build_engine, build_runner
from headrace_worker.config import ConfigError
from headrace_worker.engine import Engine
from headrace_worker.execution.runner import RunnerError
from headrace_worker.messages import (
    Alive,
    Broke,
    EndTransfer,
    Flush,
    ListPages,
    PageList,
    PagesReady,
    Phase,
    Ready,
    Received,
    ReceiveFailed,
    Start,
    Stop,
    Submit,
)
from headrace_worker.parallel.lifeline import die_with_parent
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.wire import Pipe

_BEAT_S = 0.25
_LOST_EXIT = 70
_GROUP_EXIT = 71


class Inbox:
    """Commands from the worker process, read by a thread, taken by the loop."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._commands: deque[object] = deque()
        self._filled = threading.Event()

    def read_for_ever(self) -> None:
        while (command := self._pipe.receive()) is not None:
            if isinstance(command, Stop):
                os._exit(0)
            self._commands.append(command)
            self._filled.set()
        os._exit(_LOST_EXIT)

    def take(self) -> list[object]:
        """What has come in; never waits."""
        self._filled.clear()
        return [self._commands.popleft() for _ in range(len(self._commands))]

    def wait(self, timeout_s: float | None) -> None:
        """Until a command comes in, or so many seconds."""
        self._filled.wait(timeout_s)


class Heart:
    """Signs of life from a thread, so that a long step is not taken for a stopped process, nor the other way round."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.engine: Engine | None = None

    def beat_for_ever(self) -> None:
        while True:
            self._pipe.send(Alive(math.inf if self.engine is None else self.engine.due_s))
            time.sleep(_BEAT_S)


class Loop:
    """The only loop: commands in, one step, its output out."""

    def __init__(self, engine: Engine, inbox: Inbox, pipe: Pipe) -> None:
        self._engine, self._inbox, self._pipe = engine, inbox, pipe

    def run(self) -> None:
        engine = self._engine
        while True:
            for command in self._inbox.take():
                self._apply(command)
            output = engine.step()
            if output is not None:
                self._pipe.send(output)
            wait_s = engine.wait_s()
            if wait_s is None or wait_s > 0:
                self._inbox.wait(wait_s)

    def _apply(self, command: object) -> None:
        engine = self._engine
        if isinstance(command, Submit):
            engine.submit(command.request)
        elif isinstance(command, Cancel):
            engine.cancel(command)
        elif isinstance(command, Flush):
            engine.flush(command.epoch)
        elif isinstance(command, Received):
            engine.received(command.handle)
        elif isinstance(command, ReceiveFailed):
            engine.receive_failed(command.handle, command.reason)
        elif isinstance(command, EndTransfer):
            engine.end_transfer(command.handle)
        else:
            assert isinstance(command, ListPages), f"unknown command {command!r}"
            self._pipe.send(PageList(*engine.list_pages()))


def main() -> None:
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the worker process decides when we leave
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    _report_crashes(pipe)
    start = pipe.receive()
    assert isinstance(start, Start), f"the first message is Start, not {start!r}"
    inbox, heart = Inbox(pipe), Heart(pipe)
    threading.Thread(target=inbox.read_for_ever, name="inbox", daemon=True).start()
    threading.Thread(target=heart.beat_for_ever, name="heart", daemon=True).start()

    started_s = time.monotonic()
    pipe.send(Phase("loading", "libraries", 0.0))
    runner = build_runner(
        start.config,
        lambda text, share: pipe.send(Phase("loading", text, share)),
        lambda why: _end_with_group(pipe, why),
    )
    loaded_s = time.monotonic()
    runner.warm_up(lambda text, share: pipe.send(Phase("warming", text, share)))
    warm_s = time.monotonic()
    runner.watch_pages(lambda *ready: pipe.send(PagesReady(*ready)))
    heart.engine = engine = build_engine(start.config, runner, hash_block)
    pipe.send(Ready(runner.describe(), {"load": loaded_s - started_s, "warm_up": warm_s - loaded_s}))
    begin_background(start.config, runner)
    Loop(engine, inbox, pipe).run()


def _end_with_group(pipe: Pipe, why: str) -> None:
    """A rank is lost, and this process may be waiting for it in a collective that never ends."""
    pipe.send(Broke(why, ""))
    os._exit(_GROUP_EXIT)


def _report_crashes(pipe: Pipe) -> None:
    """The worker process writes the log; an error that its operator can correct is a sentence without a traceback."""

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        known = isinstance(error, RunnerError | ConfigError)
        lines = "" if known else "".join(traceback.format_exception(kind, error, trace))
        pipe.send(Broke(str(error) if known else f"{kind.__name__}: {error}", lines))

    sys.excepthook = report
    # A thread of ours fails only if the other process is gone, and then so are we.
    threading.excepthook = lambda args: os._exit(_LOST_EXIT)


if __name__ == "__main__":
    main()
