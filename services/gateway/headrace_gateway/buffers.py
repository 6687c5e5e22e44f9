"""Text that waits for slow clients, over all streams of this process.

Decoding never waits for a client: a stream buffers at most its declared output. Above the process-wide cap the stream
with the most waiting text is ended, and the others never notice.
"""

from typing import Protocol


class Buffered(Protocol):
    """A stream with text that its client has not read."""

    buffered_bytes: int

    def end_slow_client(self) -> None: ...


class Buffers:
    """Sum of what waits; `grew` ends the slowest reader while the sum is over the cap."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: set[Buffered] = set()
        self.total_bytes = 0

    def grew(self, stream: Buffered, num_bytes: int) -> None:
        """The stream has so many more bytes waiting."""
        stream.buffered_bytes += num_bytes
        self.total_bytes += num_bytes
        self._waiting.add(stream)
        if self.total_bytes > self._max_bytes:
            slowest = max(self._waiting, key=lambda one: one.buffered_bytes)
            self.shrank(slowest, slowest.buffered_bytes)
            slowest.end_slow_client()

    def shrank(self, stream: Buffered, num_bytes: int) -> None:
        """The client took so many bytes, or will take none any more."""
        num_bytes = min(num_bytes, stream.buffered_bytes)
        stream.buffered_bytes -= num_bytes
        self.total_bytes -= num_bytes
        if not stream.buffered_bytes:
            self._waiting.discard(stream)
