"""The response object: what every response has, whatever became of it."""

from typing import Any

from headrace_gateway.http.api import Asked, Head
from headrace_gateway.http.responses.output import OutputItem
from headrace_gateway.lifecycle import outputs
from headrace_gateway.lifecycle.settlement import Usage
from headrace_kit.errors import REASONS

_INCOMPLETE = {"length": "max_output_tokens"}


class ResponseObject:
    """One response. The states follow one another: `running`, then `ended`."""

    def __init__(self, head: Head, asked: Asked) -> None:
        self._base: dict[str, Any] = {
            "id": head.response_id,
            "object": "response",
            "created_at": head.created_at_s,
            "model": head.model,
            **asked.echoed,
        }

    def running(self) -> dict[str, Any]:
        return {
            **self._base,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }

    def ended(self, terminal: outputs.Terminal, items: list[OutputItem], num_reasoning_tokens: int) -> dict[str, Any]:
        """`terminal` may be of any kind; the items know whether they are whole."""
        good = terminal.kind in ("completed", "incomplete")
        details = {"reason": _INCOMPLETE.get(terminal.reason, terminal.reason)}
        return {
            **self._base,
            "status": terminal.kind if good else "failed",
            "error": None if good else error_object(terminal),
            "incomplete_details": details if terminal.kind == "incomplete" else None,
            "output": [item.done() for item in items],
            "usage": usage_object(terminal.usage, num_reasoning_tokens),
        }


def error_object(terminal: outputs.Terminal) -> dict[str, Any]:
    """`code` is one of the API's own; `reason` is ours, as in the other APIs."""
    row = REASONS[terminal.reason]
    return {"code": "server_error", "message": terminal.detail or row.meaning, "reason": terminal.reason}


def usage_object(usage: Usage, num_reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
        "total_tokens": usage.num_total_tokens,
    }
