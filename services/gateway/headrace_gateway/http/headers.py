"""Headers: the caller's credential, id and wishes, and what every answer carries."""

import re
import secrets

from starlette.requests import Request

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.fields import invalid
from headrace_gateway.labels import REQUEST_ID, check_length
from headrace_gateway.servicer import bearer
from headrace_gateway.session import Session

_DEADLINE_MS = re.compile(r"[0-9]{1,12}")
MAX_DEADLINE_MS = 24 * 3600 * 1000


def credential(request: Request) -> str:
    """The API key: `Authorization: Bearer …` or `x-api-key`; never the query string."""
    return bearer(request.headers.get("authorization", "")) or request.headers.get("x-api-key", "")


def client_request_id(request: Request) -> str:
    """The caller's x-request-id if it may be echoed: at most 128 visible characters. It is never a key."""
    given = request.headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else ""


def take_headers(generate: pb.GenerateRequest, request: Request) -> float | None:
    """What a caller may say in headers for any API; returns the deadline in seconds. A header goes before the body."""
    generate.client_request_id = client_request_id(request)
    generate.retry_of = _label(request, "x-headrace-retry-of") or generate.retry_of
    generate.session_id = _label(request, "x-headrace-session") or generate.session_id
    generate.slo_class = _label(request, "x-headrace-class")
    deadline_ms = request.headers.get("x-headrace-deadline-ms", "")
    if not deadline_ms:
        return None
    if not (_DEADLINE_MS.fullmatch(deadline_ms) and 0 < int(deadline_ms) <= MAX_DEADLINE_MS):
        raise invalid("x-headrace-deadline-ms", f"expected milliseconds, 1 to {MAX_DEADLINE_MS}")
    return int(deadline_ms) / 1000


def _label(request: Request, name: str) -> str:
    label = request.headers.get(name, "")
    check_length(name, label)
    return label


def id_headers(request: Request) -> dict[str, str]:
    """What every answer carries, also an error: the caller's id or ours. Anthropic's client reads the second name."""
    request_id = client_request_id(request) or f"req_{secrets.token_hex(12)}"
    return {"x-request-id": request_id, "request-id": request_id}


def response_headers(session: Session) -> dict[str, str]:
    """Identity, snapshot and limits; `x-accel-buffering` keeps proxies from holding a stream back."""
    prepared = session.prepared
    request_id = prepared.request.client_request_id or session.response_id
    headers = {
        "x-request-id": request_id,
        "request-id": request_id,
        "x-headrace-response-id": session.response_id,
        "x-headrace-snapshot": str(session.snapshot_version),
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }
    if prepared.request.retry_of:
        headers["x-headrace-retry-of"] = prepared.request.retry_of
    for limit in prepared.rate_limits:
        headers[f"x-ratelimit-limit-{limit.name}"] = f"{limit.limit:g}"
        headers[f"x-ratelimit-remaining-{limit.name}"] = f"{max(0.0, limit.remaining):.0f}"
        headers[f"x-ratelimit-reset-{limit.name}"] = f"{limit.reset_ms}ms"
    return headers
