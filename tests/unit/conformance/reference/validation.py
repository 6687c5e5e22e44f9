"""What the reference server refuses: a field and a sentence, or nothing."""

import math
from collections.abc import Callable
from typing import Any

CONTEXT = 8192
Refusal = tuple[str, str]


def _number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and math.isfinite(value) and low <= value <= high


def _integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_stop(value: Any) -> bool:
    items = [value] if isinstance(value, str) else value
    return isinstance(items, list) and len(items) <= 16 and all(isinstance(one, str) and one for one in items)


def _is_bias(value: Any) -> bool:
    fine = _number(-100, 100)
    return isinstance(value, dict) and all(key.isdecimal() and fine(bias) for key, bias in value.items())


def _is_options(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("include_usage", False), bool)


CHECKS: dict[str, Callable[[Any], bool]] = {
    "model": lambda value: isinstance(value, str) and bool(value),
    "max_tokens": _integer(1, CONTEXT),
    "max_completion_tokens": _integer(1, CONTEXT),
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "n": _integer(1, 128),
    "stop": _is_stop,
    "stream": _is_bool,
    "stream_options": _is_options,
    "seed": _integer(-(2**63), 2**63 - 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "top_logprobs": _integer(0, 20),
    "logprobs": _is_bool,
    "logit_bias": _is_bias,
    "tool_choice": lambda value: value in ("none", "auto"),
    "response_format": lambda value: isinstance(value, dict) and value.get("type") == "text",
}


def refusal(body: dict[str, Any]) -> Refusal | None:
    """Of a chat body."""
    for name, fine in CHECKS.items():
        if body.get(name) is not None and not fine(body[name]):
            return name, f"{name} has a bad value"
    if body.get("model") is None:
        return "model", "model is required"
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        return "top_logprobs", "top_logprobs needs logprobs"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages", "messages is required"
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ("system", "developer", "user", "assistant"):
            return f"messages[{at}]", "no message"
        if content_of(message) is None:
            return f"messages[{at}].content", "no content"
    return None


def content_of(message: dict[str, Any]) -> str | None:
    """The text of a message: a string, or the texts of its parts."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        return "".join(map(str, texts)) if all(isinstance(text, str) for text in texts) else None
    return content if isinstance(content, str) else None
