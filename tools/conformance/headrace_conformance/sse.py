"""Server-sent events from bytes, as the HTML standard parses them. Knows no event."""

import codecs
from collections.abc import Iterator


class SseParser:
    """Feed it bytes in any pieces; ``faults`` says what no client could read."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._buffer = ""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[tuple[str, str]]:
        """Yields (name, data) of every event that the bytes complete; comments are dropped."""
        self._buffer += self._decoded(chunk)
        *lines, self._buffer = self._buffer.split("\n")
        for line in lines:
            yield from self._line(line.removesuffix("\r"))

    def close(self) -> None:
        """The bytes ended: an event without its blank line was cut."""
        if self._buffer.strip() or self._data:
            self.faults.append("the last event has no blank line behind it")

    def _decoded(self, chunk: bytes) -> str:
        try:
            return self._decoder.decode(chunk)
        except UnicodeDecodeError as error:
            self.faults.append(f"bytes that are not UTF-8: {error.object[error.start : error.start + 8]!r}")
            self._decoder.reset()
            return chunk.decode("utf-8", "replace")

    def _line(self, line: str) -> Iterator[tuple[str, str]]:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if self._data:
                yield self._name, "\n".join(self._data)
            self._name, self._data = "", []
        elif field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
