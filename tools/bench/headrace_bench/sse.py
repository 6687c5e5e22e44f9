"""The data of server-sent events, out of bytes as they arrive. Reads what OpenAI-style servers send."""

from collections.abc import Iterator


class EventReader:
    """`feed` takes bytes and gives the data of every event that is complete."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
