"""A rank's process: joins its group, loads its part of the model, computes what the leader announces.

Run as `python -m headrace_worker.execution.rank FD`. Never outlives the leader: the kernel kills it with it, and so
does its own watch on the connection. Three threads: the main one loads and computes, one waits for the leader's end,
one sends signs of life.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from types import TracebackType

import torch

from headrace_worker.config import ConfigError, WorkerConfig
from headrace_worker.execution import rank_messages as tell
from headrace_worker.execution.part import Part, load_part
from headrace_worker.execution.rank_steps import RankSteps
from headrace_worker.execution.runner import RunnerError
from headrace_worker.execution.token_mask import TokenMasks
from headrace_worker.models.checkpoint import open_files
from headrace_worker.models.errors import ModelError
from headrace_worker.parallel.lifeline import die_with_parent
from headrace_worker.parallel.place import Place
from headrace_worker.parallel.probe import measure_all_reduce
from headrace_worker.parallel.ring import RingReader
from headrace_worker.perf.layout import Layout

BEAT_S = 0.25
_LOST_EXIT = 70
_BROKE_EXIT = 71


class Line:
    """The connection to the leader. Any thread may send; one waits for its end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, report: tell.Report) -> None:
        message = pickle.dumps(report, pickle.HIGHEST_PROTOCOL)  # not `send`: torch would share tensors by files
        try:
            with self._lock:
                self._connection.send_bytes(message)
        except OSError:
            os._exit(_LOST_EXIT)

    def join(self) -> tell.Join:
        join = pickle.loads(self._connection.recv_bytes())
        assert isinstance(join, tell.Join), f"the first message is Join, not {join!r}"
        return join

    def beat_for_ever(self) -> None:
        while True:
            self.send(tell.Beat())
            time.sleep(BEAT_S)

    def leave_with_leader(self) -> None:
        """The leader says nothing more here: whatever comes is its end."""
        with suppress(EOFError, OSError):
            self._connection.recv_bytes()
        os._exit(_LOST_EXIT)


class Rank:
    """Carries out orders, in their order."""

    def __init__(self, config: WorkerConfig, part: Part, line: Line) -> None:
        self._part, self._line = part, line
        self._steps = RankSteps(config, part.loaded, part.group)
        self._measuring = ExitStack()
        self._masks: TokenMasks | None = None

    @torch.inference_mode()
    def obey(self, order: tell.Order) -> None:
        steps, draws = self._steps, self._steps.place.draws
        if isinstance(order, tell.Run):
            steps.begin(order.plan, lambda: self._masks)
            if not draws:
                steps.end()
        elif isinstance(order, tell.Draw):
            if draws:
                self._masks = order.masks
                self._line.send(tell.Drawn(steps.end()))
        elif isinstance(order, tell.Look):
            logits_RV = steps.logits(order.plan)
            if draws:
                self._line.send(tell.Logits(logits_RV.cpu()))
        else:
            self._prepare(order)

    def _prepare(self, order: tell.Order) -> None:
        """What comes before the first request."""
        if isinstance(order, tell.Allocate):
            self._steps.allocate(order.num_pages)
        elif isinstance(order, tell.Measure):
            if order.begin:
                self._measuring.enter_context(self._steps.measuring())
            else:
                self._measuring.close()
        elif isinstance(order, tell.TellSizes):
            self._line.send(tell.Sizes(*self._steps.sizes()))
        elif isinstance(order, tell.TellImages):
            self._line.send(tell.Images(tuple(self._steps.images())))
        else:
            assert isinstance(order, tell.Probe), f"unknown order {order!r}"
            measure_all_reduce(self._part.group)


def main() -> None:
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the leader decides when we leave
    line = Line(Connection(int(sys.argv[1])))
    _report_crashes(line)
    join = line.join()
    for name, run in (("leader", line.leave_with_leader), ("heart", line.beat_for_ever)):
        threading.Thread(target=run, name=name, daemon=True).start()
    line.send(tell.Here())
    place = Place(join.rank, Layout(join.config.tp, join.config.pp))
    ring = RingReader(join.ring_fd, join.bell_fd, join.rank - 1, place.layout.num_devices - 1)

    def meet() -> None:
        line.send(tell.Filled())
        if ring.receive() is None:
            os._exit(_LOST_EXIT)

    rank = Rank(join.config, load_part(join.config, open_files(join.path), place, join.meeting, meet), line)
    line.send(tell.Loaded())
    while (message := ring.receive()) is not None:
        rank.obey(pickle.loads(message))
    os._exit(_LOST_EXIT)


def _report_crashes(line: Line) -> None:
    """The leader says why the group ends; an error that an operator can correct is a sentence without a traceback."""

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        known = isinstance(error, RunnerError | ConfigError | ModelError)
        if not known:
            traceback.print_exception(kind, error, trace)
        line.send(tell.Broke(str(error) if known else f"{kind.__name__}: {error}", known))
        os._exit(_BROKE_EXIT)

    sys.excepthook = report


if __name__ == "__main__":
    main()
