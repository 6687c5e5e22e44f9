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


class EventStream(Response):
    """The status is decided: the session has been created. The client's leaving ends it."""

    media_type = "text/event-stream"

    def __init__(self, session: Session, form: StreamForm, batches: Batches, headers: dict[str, str]) -> None:
        self._session, self._form, self._batches = session, form, batches
        self.status_code = 200
        self.background = None
        self.init_headers(headers)
        self._num_sent = 0

    def init_headers(self, headers: Any = None) -> None:
        self.raw_headers = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        self.raw_headers.append((b"content-type", b"text/event-stream; charset=utf-8"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watching = asyncio.create_task(self._watch(receive))
        beating = asyncio.create_task(self._beat(send))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._write(send)
            beating.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watching.cancel()
            beating.cancel()
            self._session.leave("disconnect")

    async def _write(self, send: Send) -> None:
        if opening := self._form.opening():
            await send({"type": "http.response.body", "body": opening, "more_body": True})
        written = self._form.written
        async for batch in self._batches:
            self._num_sent += 1
            if chunk := b"".join(map(written, batch)):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _beat(self, send: Send) -> None:
        """Between two looks without an event, one keep-alive. It waits for the client's reading as all writes do."""
        while True:
            before = self._num_sent
            await asyncio.sleep(KEEP_ALIVE_S)
            if self._num_sent == before:
                await send({"type": "http.response.body", "body": self._form.keep_alive, "more_body": True})

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._session.leave("disconnect")
