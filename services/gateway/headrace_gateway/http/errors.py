"""Errors as the OpenAI and Anthropic APIs write them, from the one table of reasons."""

import math
import re
from collections.abc import Mapping
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response

from headrace_gateway.lifecycle import outputs
from headrace_kit.errors import REASONS, HeadraceError

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_WORDS = ("prompt",)
"""Names of fields that messages also use as words."""


class ErrorForm(Protocol):
    """Errors as one API writes them."""

    def error(self, error: HeadraceError, response_id: str) -> dict[str, Any]: ...


class OpenAiErrors:
    """`code` is the reason; `response_id` is there once an identity was opened."""

    def error(self, error: HeadraceError, response_id: str) -> dict[str, Any]:
        http = error.row.http
        kind = _OPENAI_TYPES.get(http, "invalid_request_error" if http < 500 else "server_error")
        body: dict[str, Any] = {"message": error.message, "type": kind, "param": error.field, "code": error.reason}
        if response_id:
            body["response_id"] = response_id
        return {"error": body}


class AnthropicErrors:
    """`type` is Anthropic's; `code` and `param` say the same as in the other APIs."""

    def error(self, error: HeadraceError, response_id: str) -> dict[str, Any]:
        kind = _ANTHROPIC_TYPES.get(error.row.http, "invalid_request_error")
        body: dict[str, Any] = {"type": kind, "message": error.message, "code": error.reason, "param": error.field}
        if response_id:
            body["response_id"] = response_id
        return {"type": "error", "error": body}


def error_response(
    error: HeadraceError, form: ErrorForm, headers: Mapping[str, str], response_id: str = ""
) -> Response:
    """`headers` are those that every answer to this request carries."""
    all_headers = dict(headers)
    if error.retry_after_s is not None:
        all_headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.row.http == 401:
        all_headers["www-authenticate"] = "Bearer"
    if response_id:
        all_headers["x-headrace-response-id"] = response_id
    return JSONResponse(form.error(error, response_id), error.row.http, all_headers)


def terminal_error(event: outputs.Terminal) -> HeadraceError:
    """A terminal that is failed or cancelled."""
    return HeadraceError(event.reason, event.detail or REASONS[event.reason].meaning)


def renamed(error: HeadraceError, names: Mapping[str, str]) -> HeadraceError:
    """The same error with the field named as this API names it."""
    old = re.split(r"[.\[]", error.field or "", maxsplit=1)[0]
    new = names.get(old, old)
    if error.field is None or new == old:
        return error
    message = error.message.replace(old, new) if old not in _WORDS else error.message
    field = new + error.field.removeprefix(old)
    return HeadraceError(
        error.reason, message, field=field, retry_after_s=error.retry_after_s, details=error.details or None
    )
