"""A connection that is closed only when its client has had the time to read the answer.

A socket closed with bytes unread is reset, and a reset takes back what its client has not read yet. So whoever is
answered while still sending is read on, and what it sends dropped, within bounds. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_S = 10.0
LINGER_BYTES = 64 * 1024 * 1024


class LingeringTransport:
    """Around a transport; `is_receiving` says whether its client is in the middle of a request."""

    linger_s = LINGER_S
    linger_bytes = LINGER_BYTES

    def __init__(self, transport: asyncio.Transport, is_receiving: Callable[[], bool]) -> None:
        self._transport, self._is_receiving = transport, is_receiving
        self.write = transport.write
        self.lingers = False
        self._num_dropped_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """At once if nobody is sending, or if this was asked for already."""
        if self.lingers or not self._is_receiving():
            self._transport.close()
        else:
            self.linger()

    def linger(self) -> None:
        """Tell the client that nothing more will come, and let it finish."""
        if self._transport.is_closing():
            return
        self.lingers = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        if not self._transport.is_reading():
            self._transport.resume_reading()
        self.bound()

    def bound(self) -> None:
        """The answer is out: from here on the client may send for so long, and so much."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.linger_s, self._transport.close)

    def unbound(self) -> None:
        """Its request is whole, or the connection gone."""
        self._num_dropped_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def drop(self, num_bytes: int) -> None:
        """So many bytes came that nobody wants."""
        self._num_dropped_bytes += num_bytes
        if self._num_dropped_bytes > self.linger_bytes:
            self._transport.close()
