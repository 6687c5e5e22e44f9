"""A body of /v1/chat/completions as a GenerateRequest: what is honoured, what is advisory, what is refused by name."""

from dataclasses import dataclass
from typing import Any

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.fields import Fields, invalid

ADVISORY = {
    "service_tier", "store", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user", "metadata",
    "parallel_tool_calls", "reasoning_effort", "verbosity", "cache_control",
}  # fmt: skip
REFUSED = {
    "tools", "functions", "function_call", "audio", "prediction", "web_search_options", "grammar", "adapter",
}  # fmt: skip
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_INTEGERS = ("top_k", "seed", "min_tokens", "top_logprobs")
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class ChatRequest:
    """The request, and how its answer is to be written."""

    generate: pb.GenerateRequest
    stream: bool
    include_usage: bool


def parse_chat(body: Fields) -> ChatRequest:
    """Raises invalid_argument that names the field."""
    for name in sorted(body.names() & REFUSED):
        if body.raw(name) not in ([], {}):
            raise invalid(name, "is not served")
    _check_fixed(body)
    request = pb.GenerateRequest(model=body.text("model") or "")
    if not request.model:
        raise invalid("model", "is required")
    request.chat.messages.extend(_messages(body))
    _set_limits(request, body)
    _set_sampling(request, body)
    request.stop.extend(_stop(body))
    stream = body.boolean("stream") or False
    return ChatRequest(request, stream, _include_usage(body, stream))


def _check_fixed(body: Fields) -> None:
    """Fields of which one value is served."""
    response_format = body.object("response_format")
    if response_format is not None and response_format.text("type") != "text":
        raise invalid("response_format.type", "only text is served")
    if (choice := body.raw("tool_choice")) not in (None, "none", "auto"):
        raise invalid("tool_choice", f"{str(choice)[:40]!r} names no tool of this request")
    if (body.items("modalities") or ["text"]) != ["text"]:
        raise invalid("modalities", "only text is served")


def _messages(body: Fields) -> list[pb.Message]:
    items = body.items("messages")
    if not items:
        raise invalid("messages", "expected at least one message")
    return [_message(Fields(_object(item, f"messages[{at}]"), f"messages[{at}]")) for at, item in enumerate(items)]


def _object(item: Any, path: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise invalid(path, "expected an object")
    return item


def _message(fields: Fields) -> pb.Message:
    role = fields.text("role")
    if role not in _ROLES:
        raise invalid(fields.where("role"), f"expected one of {', '.join(_ROLES)}")
    if fields.items("tool_calls"):
        raise invalid(fields.where("tool_calls"), "is not served")
    return pb.Message(role=role, content=_content(fields), name=fields.text("name") or "",
                      tool_call_id=fields.text("tool_call_id") or "")  # fmt: skip


def _content(fields: Fields) -> str:
    content = fields.raw("content")
    if isinstance(content, str):
        return fields.utf8("content", content)
    if content is None and fields.text("role") == "assistant":
        return ""
    if not isinstance(content, list):
        raise invalid(fields.where("content"), "expected a string or an array of text parts")
    return "".join(_part(fields, at, part) for at, part in enumerate(content))


def _part(fields: Fields, at: int, part: Any) -> str:
    path = f"{fields.where('content')}[{at}]"
    inner = Fields(_object(part, path), path)
    if inner.text("type") != "text":
        raise invalid(f"{path}.type", "only text parts are served")
    if (text := inner.text("text")) is None:
        raise invalid(f"{path}.text", "is required")
    return text


def _set_limits(request: pb.GenerateRequest, body: Fields) -> None:
    older, newer = body.integer("max_tokens"), body.integer("max_completion_tokens")
    if older is not None and newer is not None and older != newer:
        raise invalid("max_tokens", "differs from max_completion_tokens")
    limit = newer if newer is not None else older
    if limit is not None:
        if limit < 1:
            raise invalid("max_tokens" if newer is None else "max_completion_tokens", "must be at least 1")
        request.max_output_tokens = limit
    if (n := body.integer("n")) is not None:
        request.n = n
    request.session_id = body.text("prompt_cache_key") or ""


def _set_sampling(request: pb.GenerateRequest, body: Fields) -> None:
    sampling = request.sampling
    for name in _NUMBERS:
        if (number := body.number(name)) is not None:
            setattr(sampling, name, number)
    for name in _INTEGERS:
        if (integer := body.integer(name)) is not None:
            setattr(sampling, name, integer)
    sampling.logprobs = body.boolean("logprobs") or False
    sampling.ignore_eos = body.boolean("ignore_eos") or False
    for at, token_id in enumerate(body.items("stop_token_ids") or []):
        if type(token_id) is not int or not -(2**63) <= token_id < 2**63:
            raise invalid(f"stop_token_ids[{at}]", "expected an integer")
        sampling.stop_token_ids.append(token_id)
    if (bias := body.object("logit_bias")) is not None:
        for name in bias.names():
            sampling.logit_bias[_token_id(bias, name)] = bias.number(name) or 0.0


def _token_id(bias: Fields, name: str) -> int:
    if not (name.removeprefix("-").isdecimal() and name.isascii() and len(name) < 19):
        raise invalid(bias.where(name[:40]), "expected a token id")
    return int(name)


def _stop(body: Fields) -> list[str]:
    stop = body.raw("stop")
    if stop is None:
        return []
    if isinstance(stop, str):
        return [body.utf8("stop", stop)]
    items = body.items("stop") or []
    for at, item in enumerate(items):
        if not isinstance(item, str):
            raise invalid(f"stop[{at}]", "expected a string")
        body.utf8(f"stop[{at}]", item)
    return items


def _include_usage(body: Fields, stream: bool) -> bool:
    options = body.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise invalid("stream_options", "is only for streams")
    return options.boolean("include_usage") or False
