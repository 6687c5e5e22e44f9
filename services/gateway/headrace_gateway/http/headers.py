"""Headers: the caller's credential and id, and what every answer carries."""

import re

from starlette.requests import Request

from headrace_gateway.servicer import bearer
from headrace_gateway.session import Session

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def credential(request: Request) -> str:
    """The API key: `Authorization: Bearer …` or `x-api-key`; never the query string."""
    return bearer(request.headers.get("authorization", "")) or request.headers.get("x-api-key", "")


def client_request_id(request: Request) -> str:
    """The caller's x-request-id if it may be echoed: at most 128 visible characters. It is never a key."""
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else ""


def response_headers(session: Session) -> dict[str, str]:
    """Identity, snapshot and limits; `x-accel-buffering` keeps proxies from holding a stream back."""
    prepared = session.prepared
    headers = {
        "x-request-id": prepared.request.client_request_id or session.response_id,
        "x-headrace-response-id": session.response_id,
        "x-headrace-snapshot": str(session.snapshot_version),
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }
    for limit in prepared.rate_limits:
        headers[f"x-ratelimit-limit-{limit.name}"] = f"{limit.limit:g}"
        headers[f"x-ratelimit-remaining-{limit.name}"] = f"{max(0.0, limit.remaining):.0f}"
        headers[f"x-ratelimit-reset-{limit.name}"] = f"{limit.reset_ms}ms"
    return headers
