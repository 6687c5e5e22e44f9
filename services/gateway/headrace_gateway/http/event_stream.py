"""One session written as server-sent events, with keep-alives while nothing is there to write. Knows no format."""

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace_gateway.http.api import StreamForm
from headrace_gateway.parsed_stream import Batches
from headrace_gateway.session import Session

KEEP_ALIVE_S = 10.0
"""A silent prefill may last minutes; proxies and clients cut what is silent for less than one."""


async def leave_on_disconnect(receive: Receive, session: Session) -> None:
    """While nothing is being written, only the connection can say that the client went away. Its one reader."""
    while (await receive())["type"] != "http.disconnect":
        pass
    session.leave("disconnect")


class EventStream(Response):
    """The status is decided: the session has been created. The client's leaving ends it."""

    media_type = "text/event-stream"

    def __init__(
        self,
        session: Session,
        form: StreamForm,
        batches: Batches,
        headers: dict[str, str],
        watching: "asyncio.Task[None]",
    ) -> None:
        """`watching` ends the session when the client leaves; it is cancelled at the end."""
        self._session, self._form, self._batches, self._watching = session, form, batches, watching
        self.status_code = 200
        self.background = None
        self.init_headers(headers)
        self._num_sent = 0
        self._beat: asyncio.Task[None] | None = None

    def init_headers(self, headers: Any = None) -> None:
        self.raw_headers = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        self.raw_headers.append((b"content-type", b"text/event-stream; charset=utf-8"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(KEEP_ALIVE_S, self._look, send, 0)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            # A task of its own: every wake would have to pass through all layers of the application.
            await loop.create_task(self._write(send))
            self._stop_beating()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._stop_beating()
            self._watching.cancel()
            self._session.leave("disconnect")

    async def _write(self, send: Send) -> None:
        if opening := self._form.opening():
            await send({"type": "http.response.body", "body": opening, "more_body": True})
        written = self._form.written
        async for batch in self._batches:
            self._num_sent += 1
            if chunk := b"".join(map(written, batch)):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

    def _look(self, send: Send, num_sent: int) -> None:
        """Between two looks without an event, one keep-alive. It waits for the client's reading as all writes do."""
        if self._num_sent == num_sent and (self._beat is None or self._beat.done()):
            self._beat = asyncio.ensure_future(self._keep_alive(send))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(KEEP_ALIVE_S, self._look, send, self._num_sent)

    async def _keep_alive(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": self._form.keep_alive, "more_body": True})

    def _stop_beating(self) -> None:
        self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()
