"""Talks HTTP to the server under test and records what comes back. Judges nothing."""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from headrace_conformance.recording import Event, Recording, Surface
from headrace_conformance.sse import SseParser
from headrace_conformance.tolerant import parsed

PATHS: Mapping[Surface, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The parsed body, or None."""
        return parsed(self.body)


class Leave(Exception):
    """Raised by an ``on_event`` that wants the connection cut here."""


OnEvent = Callable[[int, Event], object]


class Client:
    """``origin`` is scheme, host and port. Every wait is bounded by ``timeout_s``."""

    def __init__(self, origin: str, api_key: str, timeout_s: float = 30.0) -> None:
        self.origin, self.api_key = origin, api_key
        small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)]
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=32)
        # Reading the trusted authorities takes longer than many a rule; plain http needs none.
        verify = origin.startswith("https:")
        self._http = httpx.AsyncClient(
            base_url=origin, timeout=timeout_s, limits=limits, trust_env=False, verify=verify
        )
        narrow = httpx.AsyncHTTPTransport(socket_options=small, verify=verify)
        self._narrow = httpx.AsyncClient(base_url=origin, timeout=timeout_s, transport=narrow, verify=verify)

    async def close(self) -> None:
        await self._http.aclose()
        await self._narrow.aclose()

    def authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    async def send(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, json: Any = None, content: Any = None
    ) -> Answer:
        """One exchange; ``headers`` None means the credential, else exactly these."""
        sent = dict(self.authorization() if headers is None else headers)
        if content is not None:
            sent.setdefault("content-type", "application/json")
        got = await self._http.request(method, path, headers=sent, json=json, content=content)
        return Answer(got.status_code, got.headers, got.content)

    async def record(
        self,
        name: str,
        surface: Surface,
        body: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        on_event: OnEvent | None = None,
    ) -> Recording:
        """Records one stream to its end, or until ``on_event`` raises Leave; then the connection is closed."""
        sent = {**self.authorization(), **(headers or {})}
        if surface == "messages":
            sent |= {"x-api-key": self.api_key, "anthropic-version": "2023-06-01"}
        async with self._http.stream("POST", PATHS[surface], headers=sent, json=body) as got:
            if got.status_code != 200:
                answer = await got.aread()
                return Recording(name, surface, body, (), got.status_code, got.headers, answer)
            return await _read(Recording(name, surface, body, (), 200, got.headers), got, on_event)

    def narrow_stream(self, body: Mapping[str, Any]) -> Any:
        """A chat stream over a connection with a tiny receive buffer, as a context manager."""
        return self._narrow.stream("POST", PATHS["chat"], headers=self.authorization(), json=body)


async def _read(empty: Recording, got: httpx.Response, on_event: OnEvent | None) -> Recording:
    parser, events, started, ended = SseParser(), list[Event](), time.monotonic(), True

    def take(chunk: bytes) -> None:
        for name, data in parser.feed(chunk):
            events.append(Event(data, name, time.monotonic() - started))
            if on_event is not None:
                on_event(len(events) - 1, events[-1])

    try:
        async for chunk in got.aiter_bytes():
            take(chunk)
        parser.close()
    except httpx.TransportError:
        ended = False
    except Leave:
        pass
    return replace(empty, events=tuple(events), ended=ended, faults=tuple(parser.faults))
