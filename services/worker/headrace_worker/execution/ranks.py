"""The leader's hold on the other ranks of its group: starts them, speaks with them, notices a loss, ends them.

    a rank ends in any way       --> its connection ends, within moments
    a rank is stopped            --> its heart is silent for SILENT_S, however long a step takes
    ranks disagree about a step  --> the flight log shows it; so it does a collective that takes too long
    the leader ends in any way   --> the kernel kills the ranks, and so does their own watch on the connection

Whatever it is, the group is over: the ranks are killed, which frees the leader from any collective, and `on_lost` is
told why. Knows no plan and no tensor.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, TypeVar, get_args

from headrace_worker.config import WorkerConfig
from headrace_worker.execution import rank_messages as tell
from headrace_worker.execution.runner import RunnerError
from headrace_worker.parallel.collectives import Meeting
from headrace_worker.parallel.flight_log import FlightLog
from headrace_worker.parallel.place import Place
from headrace_worker.parallel.ring import RingStalled, RingWriter, shared_memory
from headrace_worker.perf.layout import Layout

PROGRAM: Sequence[str] = (sys.executable, "-m", "headrace_worker.execution.rank")
# A heart beats four times a second. Imports and loading hold the interpreter for longer than serving does.
SILENT_S = 1.25
_LOADING_SILENT_S = 120.0
_LOOK_S = 0.1
_VERDICT_S = 3.0
_KILLED_S = 5.0
_ReportT = TypeVar("_ReportT")


@dataclass
class _Rank:
    """One process. Silence is counted in looks, so that a machine that slept is not taken for a rank that did.

    Reports wait by their kind: an answer to a question may come behind the tokens of a step that is not asked for yet.
    """

    number: int
    process: subprocess.Popen[bytes]
    connection: Connection
    reports: dict[type, queue.Queue[Any]] = field(
        default_factory=lambda: {kind: queue.Queue() for kind in get_args(tell.Report)}
    )
    silent_s: float = 0.0
    words: str = ""
    known: bool = False


class Ranks:
    """Ranks 1 and up of a group. `on_lost` is called once, from a thread, when the group is over."""

    def __init__(self, config: WorkerConfig, on_lost: Callable[[str], None] | None = None) -> None:
        self._layout = Layout(config.tp, config.pp)
        self._timeout_s, self._on_lost = config.collective_timeout_s, on_lost
        num_ranks = self._layout.num_devices
        self.log = FlightLog(num_ranks)
        self._ring = RingWriter(num_ranks - 1)
        self.meeting = Meeting(shared_memory(0), self.log.fd, config.collective_timeout_s)
        self._ranks: list[_Rank] = []
        self._lost: str | None = None
        self._over = threading.Event()
        self._closing = False
        self._patience_s = _LOADING_SILENT_S
        self._watch = threading.Thread(target=self._watch_for_ever, name="ranks", daemon=True)

    def start(self, config: WorkerConfig, path: Path) -> None:
        """Returns when every rank is there. Raises RunnerError."""
        for number in range(1, self._layout.num_devices):
            self._ranks.append(self._start(number, config, path))
        self._ring.close_reader_fds()
        self._watch.start()
        for rank in self._ranks:
            self.receive(rank.number, tell.Here)

    def serve(self) -> None:
        """From now on the ranks must beat in time."""
        self._patience_s = SILENT_S

    def send(self, order: tell.Order) -> None:
        """To all ranks. Raises RunnerError when the group is over."""
        try:
            self._ring.send(pickle.dumps(order, pickle.HIGHEST_PROTOCOL), self._timeout_s)
        except (RingStalled, OSError) as error:
            raise self.explain(error) from error

    def receive(self, number: int, kind: type[_ReportT]) -> _ReportT:
        """The next report of this kind of a rank. Raises RunnerError when the group is over."""
        reports: queue.Queue[_ReportT] = self._ranks[number - 1].reports[kind]
        while True:
            try:
                return reports.get(timeout=_LOOK_S)
            except queue.Empty:
                if self._over.is_set():
                    raise self._verdict() from None

    def receive_all(self, kind: type[_ReportT]) -> list[_ReportT]:
        """One report of every rank."""
        return [self.receive(rank.number, kind) for rank in self._ranks]

    def explain(self, error: Exception) -> RunnerError:
        """Why something failed that needs all ranks: what the watch finds soon, or the error itself."""
        return self._verdict() if self._over.wait(_VERDICT_S) else RunnerError(f"the group of ranks failed: {error}")

    def close(self) -> None:
        """End all ranks, and wait until they are gone."""
        self._closing = True
        self._kill()
        for rank in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(_KILLED_S)
        if self._watch.is_alive():
            self._watch.join(_KILLED_S)
        for rank in self._ranks:
            rank.connection.close()
        self._ring.close()

    def _start(self, number: int, config: WorkerConfig, path: Path) -> _Rank:
        ours, theirs = Pipe()
        ring_fd, bell_fd = self._ring.fd, self._ring.reader_fds[number - 1]
        fds = (theirs.fileno(), ring_fd, bell_fd, self.meeting.store_fd, self.meeting.log_fd)
        command = [*PROGRAM, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL)
        theirs.close()
        ours.send_bytes(pickle.dumps(tell.Join(config, path, number, self.meeting, ring_fd, bell_fd)))
        return _Rank(number, process, ours)

    def _watch_for_ever(self) -> None:
        """Until the group is over."""
        suspected: str | None = None
        while not self._closing:
            lost = self._listen() or self._silent() or self._stuck()
            mismatch = self._mismatch()
            # Lines are written while they are read: only what is seen twice is so.
            lost = lost or (f"ranks disagree: {mismatch}" if mismatch and mismatch == suspected else None)
            suspected = mismatch
            if lost is not None and not self._closing:
                self._give_up(lost)
                return

    def _give_up(self, lost: str) -> None:
        self._lost = lost
        self._kill()
        self._over.set()
        if self._on_lost is not None:
            self._on_lost(str(self._verdict()))

    def _listen(self) -> str | None:
        """Take in what ranks say, for one look's time; how one ended, if one did."""
        by_connection = {rank.connection: rank for rank in self._ranks}
        until_s = time.monotonic() + _LOOK_S
        heard: set[int] = set()
        while (left_s := until_s - time.monotonic()) > 0:
            for connection in wait(list(by_connection), left_s):
                assert isinstance(connection, Connection), "we wait for connections alone"
                rank = by_connection[connection]
                heard.add(rank.number)
                if not self._hear(rank):
                    return self._ending(rank)
        for rank in self._ranks:
            rank.silent_s = 0.0 if rank.number in heard else rank.silent_s + _LOOK_S
        return None

    @staticmethod
    def _hear(rank: _Rank) -> bool:
        """False at the end of its connection."""
        try:
            report: tell.Report = pickle.loads(rank.connection.recv_bytes())
        except (EOFError, OSError):
            return False
        if isinstance(report, tell.Broke):
            rank.words, rank.known = report.detail, report.known
        elif not isinstance(report, tell.Beat):
            rank.reports[type(report)].put(report)
        return True

    def _ending(self, rank: _Rank) -> str:
        if rank.words:
            return rank.words if rank.known else f"{self._name(rank)} broke: {rank.words}"
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = rank.process.wait(_LOOK_S)
            how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
            return f"{self._name(rank)} has ended: {how}"
        return f"{self._name(rank)} has ended"

    def _silent(self) -> str | None:
        silent = next((rank for rank in self._ranks if rank.silent_s > self._patience_s), None)
        return None if silent is None else f"{self._name(silent)} gives no sign of life for {silent.silent_s:.1f} s"

    def _stuck(self) -> str | None:
        groups = (Place(0, self._layout).tensor_group(stage) for stage in range(self._layout.pipeline))
        return next(filter(None, (self.log.stuck(group, self._timeout_s) for group in groups)), None)

    def _mismatch(self) -> str | None:
        groups = (Place(0, self._layout).tensor_group(stage) for stage in range(self._layout.pipeline))
        return next(filter(None, (self.log.mismatch(group) for group in groups)), None)

    def _name(self, rank: _Rank) -> str:
        return f"rank {rank.number} of {self._layout.num_devices} (pid {rank.process.pid})"

    def _verdict(self) -> RunnerError:
        return RunnerError(self._lost or "the group of ranks is closed")

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.process.kill()
