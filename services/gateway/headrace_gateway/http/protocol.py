"""What uvicorn does not do for a connection.

It bounds the size of a request's head, its time, and how long a client may not read; it lets who is refused while still
sending read the answer; it writes no chunks to HTTP/1.0; it answers a client that closed its own direction; and where a
client offers another protocol beside its request, as some do by default, it serves the request.
The parsing is httptools', the serving uvicorn's. Knows no path and no API.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httptools
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace_gateway.http.lingering import LingeringTransport

MAX_HEAD_BYTES = 32 * 1024
HEAD_S = 20.0
"""From the first byte of a connection, or of a further request on it, to the end of the headers."""
STALLED_S = 300.0
"""A client whose full socket takes nothing for so long has gone, whatever its connection says."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Within these limits it is uvicorn's own."""

    max_head_bytes = MAX_HEAD_BYTES
    head_s = HEAD_S
    stalled_s = STALLED_S
    lingering = LingeringTransport
    transport: LingeringTransport  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._receiving = self._half_closed = False
        self._num_head_bytes = self._num_fed_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(self.lingering(transport, lambda: self._receiving))  # type: ignore[arg-type]
        self._head_timer = self.loop.call_later(self.head_s, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self.transport.unbound()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more: whoever runs for it hears that it left, and what that makes is still written."""
        if self.transport.lingers or self.cycle is None or self.cycle.response_complete or self.scheme == "https":
            return False
        self._half_closed, self._receiving = True, False
        self.cycle.message_event.set()
        return True

    def data_received(self, data: bytes) -> None:
        if self.transport.lingers:
            self.transport.drop(len(data))
            return
        if not self._in_head:
            self._feed(data)
            return
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self._give_up)
        self._num_fed_bytes += len(data)
        self._feed(data)
        # One header without an end reaches no callback.
        if self._in_head and self._num_fed_bytes > self.max_head_bytes and not self.transport.is_closing():
            self._refuse(431, "the headers are too large")

    def _feed(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offered:
            self._decline(data[offered.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _decline(self, rest: bytes) -> None:
        """The parser took what follows the head for another protocol: it reads the request again without the offer."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("")
            return
        kept = (pair for pair in self.headers if pair[0] not in (b"upgrade", b"http2-settings"))
        lines = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%s: %s" % pair for pair in kept]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self._feed(b"\r\n".join([*lines, b"", rest]))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._receiving = True
        self._num_head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_head, self._num_fed_bytes = False, 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.cycle.response_complete:
            self.transport.drop(len(body))

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._in_head, self._receiving = True, False  # what comes next on this connection is another request
        if not self.transport.lingers:
            self.transport.unbound()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._half_closed and not self.pipeline:
            self.transport.close()
        elif self._receiving:
            self.transport.bound()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, self._exchange(cycle, app))

    def _exchange(self, cycle: RequestResponseCycle, app: Any) -> Any:
        """One request as the application sees it."""

        async def exchange(scope: Scope, receive: Receive, send: Send) -> None:
            framed = _unframed(cycle, send) if scope["http_version"] == "1.0" else send
            await app(scope, self._hearing(cycle, receive), framed)

        return exchange

    def _hearing(self, cycle: RequestResponseCycle, receive: Receive) -> Receive:
        """The request's body, and then whether its client has left."""
        is_whole = False

        async def hear() -> Message:
            nonlocal is_whole
            if self._half_closed and (is_whole or (cycle.more_body and not cycle.body)):
                return {"type": "http.disconnect"}
            message = await receive()
            has_left = is_whole or (message.get("more_body") and not message["body"])
            is_whole = not message.get("more_body")
            return {"type": "http.disconnect"} if self._half_closed and has_left else message

        return hear

    def send_400_response(self, msg: str) -> None:
        if self._num_head_bytes > self.max_head_bytes:
            self._refuse(431, "the headers are too large")
        else:
            self._refuse(400, "this is not HTTP")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.stalled_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def _count(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > self.max_head_bytes:
            raise ValueError("head too large")  # httptools makes a parser error of it, and that a refusal

    def _refuse(self, status: int, message: str) -> None:
        """Nothing was parsed to the end, so no application can answer."""
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_argument"}
        body = json.dumps({"error": error}).encode()
        reason = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}[status]
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.linger()

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(408, f"the headers did not arrive within {self.head_s:g} s")

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()


def _unframed(cycle: RequestResponseCycle, send: Send) -> Send:
    """HTTP/1.0 knows no chunks: a body goes as it is, and ends with the connection."""
    cycle.chunked_encoding = False

    async def plainly(message: Message) -> None:
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))  # each part is all that it says it is
        await send(message)

    return plainly
