"""A ring of messages in shared memory: the leader writes once, every rank reads. Knows no message.

    data:  [ .. | piece | piece | piece | .. ]    each rank has read up to its own mark; the leader waits for the last
    pipes: one byte per piece and rank; a rank sleeps on its own, and wakes with nothing when the leader is gone

The memory has no name: it is gone with the processes that have it, however they end.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time

_CAPACITY = 1 << 22
_MARK = struct.Struct("<Q")
_HEADER = struct.Struct("<II")
_POLL_S = 0.0002


class RingStalled(Exception):
    """A rank did not read in time."""


def shared_memory(num_bytes: int) -> int:
    """A file descriptor of anonymous memory that children can inherit."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("headrace")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, num_bytes)
    return fd


class _Memory:
    """Marks of `num_readers` readers, then the data."""

    def __init__(self, fd: int, num_readers: int) -> None:
        self._start = _MARK.size * num_readers
        self._map = mmap.mmap(fd, 0)
        self._capacity = len(self._map) - self._start

    def mark(self, reader: int) -> int:
        (mark,) = _MARK.unpack_from(self._map, _MARK.size * reader)
        return int(mark)

    def set_mark(self, reader: int, mark: int) -> None:
        _MARK.pack_into(self._map, _MARK.size * reader, mark)

    def put(self, at: int, data: bytes | memoryview) -> None:
        offset = at % self._capacity
        first = min(len(data), self._capacity - offset)
        start = self._start
        self._map[start + offset : start + offset + first] = data[:first]
        self._map[start : start + len(data) - first] = data[first:]

    def get(self, at: int, size: int) -> bytes:
        offset = at % self._capacity
        first = min(size, self._capacity - offset)
        start = self._start
        return self._map[start + offset : start + offset + first] + self._map[start : start + size - first]


class RingWriter:
    """The leader's end. `reader_fds[i]`, with `fd`, is what reader i is given."""

    def __init__(self, num_readers: int, capacity: int = _CAPACITY) -> None:
        self._num_readers, self._capacity = num_readers, capacity
        self.fd = shared_memory(_MARK.size * num_readers + capacity)
        self._memory = _Memory(self.fd, num_readers)
        pipes = [os.pipe() for _ in range(num_readers)]
        self.reader_fds = [reader for reader, _ in pipes]
        self._bells = [writer for _, writer in pipes]
        self._written = 0

    def send(self, message: bytes, timeout_s: float) -> None:
        """Raises RingStalled if a rank does not make room in time, OSError if one is gone."""
        until_s = time.monotonic() + timeout_s
        most = self._capacity // 2 - _HEADER.size
        view = memoryview(message)
        for start in range(0, max(1, len(message)), most):
            self._send_piece(view[start : start + most], start + most < len(message), until_s)

    def close_reader_fds(self) -> None:
        """Once the readers have theirs: so that a pipe ends with its only reader."""
        for fd in self.reader_fds:
            os.close(fd)

    def close(self) -> None:
        for fd in (self.fd, *self._bells):
            os.close(fd)

    def _send_piece(self, piece: memoryview, more: bool, until_s: float) -> None:
        size = _HEADER.size + len(piece)
        while self._written + size - self._slowest() > self._capacity:
            if time.monotonic() > until_s:
                raise RingStalled("a rank reads no plans")
            time.sleep(_POLL_S)
        self._memory.put(self._written, _HEADER.pack(len(piece), more))
        self._memory.put(self._written + _HEADER.size, piece)
        self._written += size
        for bell in self._bells:
            os.write(bell, b"\0")

    def _slowest(self) -> int:
        return min((self._memory.mark(reader) for reader in range(self._num_readers)), default=self._written)


class RingReader:
    """A rank's end."""

    def __init__(self, fd: int, bell: int, number: int, num_readers: int) -> None:
        self._memory = _Memory(fd, num_readers)
        self._bell, self._number = bell, number
        self._read = 0

    def receive(self) -> bytes | None:
        """The next message; None when the leader is gone."""
        parts: list[bytes] = []
        more = True
        while more:
            if not os.read(self._bell, 1):
                return None
            size, more = _HEADER.unpack(self._memory.get(self._read, _HEADER.size))
            parts.append(self._memory.get(self._read + _HEADER.size, size))
            self._read += _HEADER.size + size
            self._memory.set_mark(self._number, self._read)
        return b"".join(parts)
