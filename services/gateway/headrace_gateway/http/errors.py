"""Errors as the OpenAI API writes them, from the one table of reasons."""

import json
import math
from typing import Any

from starlette.responses import JSONResponse, Response

from headrace_kit.errors import HeadraceError

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_object(error: HeadraceError, response_id: str = "") -> dict[str, Any]:
    """`code` is the reason; `response_id` is there once an identity was opened."""
    http = error.row.http
    kind = _TYPES.get(http, "invalid_request_error" if http < 500 else "server_error")
    body: dict[str, Any] = {"message": error.message, "type": kind, "param": error.field, "code": error.reason}
    if response_id:
        body["response_id"] = response_id
    return {"error": body}


def error_response(error: HeadraceError, response_id: str = "") -> Response:
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.row.http == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_object(error, response_id), error.row.http, headers)


def error_event(error: HeadraceError, response_id: str) -> bytes:
    """The terminal of a stream that failed or was cancelled; no [DONE] follows."""
    return f"data: {json.dumps(error_object(error, response_id), ensure_ascii=False)}\n\n".encode()
