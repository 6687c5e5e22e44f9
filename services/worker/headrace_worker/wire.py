"""Length-prefixed pickles between a worker's two own processes. Knows no message, and is never open to anyone else."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import threading

_HEADER = struct.Struct("<Q")
_PROTOCOL = 5


def _pack(message: object) -> bytes:
    data = pickle.dumps(message, _PROTOCOL)
    return _HEADER.pack(len(data)) + data


class Pipe:
    """The engine process's end: blocking; any thread may send, one may receive."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Raises OSError when the other process is gone."""
        data = _pack(message)
        with self._lock:
            self._sock.sendall(data)

    def receive(self) -> object | None:
        """The next message; None when the other process is gone."""
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack(header)
        data = self._file.read(size)
        return pickle.loads(data) if len(data) == size else None


class AsyncPipe:
    """The worker process's end, on its event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, sock: socket.socket) -> AsyncPipe:
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def send(self, message: object) -> None:
        """Never blocks; what is sent to a process that is gone is lost."""
        if not self._writer.is_closing():
            self._writer.write(_pack(message))

    async def receive(self) -> object | None:
        """The next message; None when the other process is gone."""
        try:
            (size,) = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            message: object = pickle.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return message

    def close(self) -> None:
        self._writer.close()
