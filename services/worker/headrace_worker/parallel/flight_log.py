"""What each rank is doing, in shared memory: its latest collective, since when, and its seconds at work.

A rank writes its own line before and after every collective, in about a microsecond; the leader reads all of them. Two
ranks of one tensor group at the same collective with different shapes will never meet: `mismatch` says so at once, and
`stuck` names a rank that waits too long. Knows no tensors.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from headrace_worker.parallel.ring import shared_memory

KINDS = ("nothing", "all_reduce", "gather", "send", "receive", "maximum", "broadcast")
_LINE = struct.Struct("<QQQQQQ")
_NS = 1_000_000_000


class Line(NamedTuple):
    """`since_ns` is 0 outside of collectives (CLOCK_MONOTONIC); the sums are nanoseconds since the start."""

    number: int = 0
    kind: int = 0
    num_bytes: int = 0
    since_ns: int = 0
    collective_ns: int = 0
    busy_ns: int = 0

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} number {self.number} of {self.num_bytes} bytes"


class FlightLog:
    """The lines of all ranks; without `fd`, memory of its own."""

    def __init__(self, num_ranks: int, fd: int | None = None) -> None:
        self.fd = shared_memory(_LINE.size * num_ranks) if fd is None else fd
        self._map = mmap.mmap(self.fd, _LINE.size * num_ranks)

    def line(self, rank: int) -> Line:
        return Line(*_LINE.unpack_from(self._map, _LINE.size * rank))

    def write(self, rank: int, line: Line) -> None:
        _LINE.pack_into(self._map, _LINE.size * rank, *line)

    def mismatch(self, ranks: Sequence[int]) -> str | None:
        """Ranks of one tensor group at the same collective that disagree about it."""
        lines = {rank: self.line(rank) for rank in ranks}
        for rank, line in lines.items():
            for other, theirs in lines.items():
                if line.number == theirs.number and line[1:3] != theirs[1:3]:
                    return f"rank {rank} is at {line} and rank {other} at {theirs}"
        return None

    def stuck(self, ranks: Sequence[int], timeout_s: float) -> str | None:
        """The ranks of one tensor group, if one of them waits for longer."""
        now_ns = time.monotonic_ns()
        lines = {rank: self.line(rank) for rank in ranks}
        longest_ns = max((now_ns - line.since_ns for line in lines.values() if line.since_ns), default=0)
        if longest_ns <= timeout_s * _NS:
            return None
        places = ", ".join(f"rank {rank} {'in' if line.since_ns else 'after'} {line}" for rank, line in lines.items())
        return f"a collective takes over {timeout_s:g} s: {places}"


class FlightRecorder:
    """One rank's own line."""

    def __init__(self, log: FlightLog, rank: int) -> None:
        self._log, self._rank = log, rank
        self._line = Line()

    def enter(self, kind: str, num_bytes: int) -> None:
        line = self._line
        self._line = line._replace(
            number=line.number + 1, kind=KINDS.index(kind), num_bytes=num_bytes, since_ns=time.monotonic_ns()
        )
        self._log.write(self._rank, self._line)

    def leave(self) -> None:
        line = self._line
        took_ns = time.monotonic_ns() - line.since_ns
        self._line = line._replace(since_ns=0, collective_ns=line.collective_ns + took_ns)
        self._log.write(self._rank, self._line)

    def add_busy(self, seconds: float) -> None:
        """Work on a step, collectives of the tensor group included, waiting for other stages not."""
        self._line = self._line._replace(busy_ns=self._line.busy_ns + round(seconds * _NS))
        self._log.write(self._rank, self._line)

    @property
    def collective_s(self) -> float:
        return self._line.collective_ns / _NS
