"""Browsers from origins that the fleet names may call; from all others nothing changes. Knows no path.

A preflight carries no key and is answered without one, but only to a named origin (decision 21).
"""

from collections.abc import Callable, Collection
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

EVERY_ORIGIN = "*"
_PREFLIGHT_AGE_S = 600
_EXPOSED = "x-request-id, x-headrace-response-id, x-headrace-snapshot, x-headrace-retry-of, retry-after"


class Cors:
    """Around an application. `origins` is asked each time, for a snapshot may change them."""

    def __init__(self, app: ASGIApp, origins: Callable[[], Collection[str]]) -> None:
        self._app, self._origins = app, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin, allowed = headers.get("origin", ""), self._origins()
        if not origin or not (origin in allowed or EVERY_ORIGIN in allowed):
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _answer_preflight(origin, headers.get("access-control-request-headers", ""), send)
        else:
            await self._app(scope, receive, _allowing(origin, send))


def _allowing(origin: str, send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            headers["access-control-allow-origin"] = origin
            headers["access-control-expose-headers"] = _EXPOSED
            headers.add_vary_header("origin")
        await send(message)

    return sending


async def _answer_preflight(origin: str, wanted_headers: str, send: Send) -> None:
    headers: dict[str, Any] = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": wanted_headers or "authorization, content-type",
        "access-control-max-age": str(_PREFLIGHT_AGE_S),
        "vary": "origin",
    }
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 204, "headers": raw})
    await send({"type": "http.response.body", "body": b""})
