"""A body of /v1/chat/completions as a GenerateRequest: what is honoured, what is advisory, what is refused by name."""

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.api import Asked
from headrace_gateway.http.fields import Fields, invalid
from headrace_gateway.http.known_fields import ADVISORY, KnownFields
from headrace_gateway.http.options import (
    LABEL_NAMES,
    SAMPLING,
    as_object,
    include_usage,
    set_grammar,
    set_labels,
    set_model,
    set_output_limit,
    set_sampling,
    set_stop,
)
from headrace_gateway.http.tools import assistant_calls, set_tools

FIELDS = KnownFields(
    api="chat",
    honoured=SAMPLING
    | {
        "model", "messages", "max_tokens", "max_completion_tokens", "n", "stop", "stream", "stream_options", "logprobs",
        "top_logprobs", "tools", "tool_choice", "response_format", "modalities", "metadata", "prompt_cache_key",
    },
    advisory=ADVISORY,
    refused={"functions", "function_call", "audio", "prediction", "web_search_options", "grammar", "adapter"},
)  # fmt: skip
_ROLES = ("system", "developer", "user", "assistant", "tool")


def parse_chat(body: Fields) -> Asked:
    """Raises invalid_argument that names the field."""
    FIELDS.check(body)
    request = pb.GenerateRequest()
    set_model(request, body)
    request.chat.messages.extend(_messages(body))
    set_tools(request.chat, body)
    limit_name = _set_limits(request, body)
    set_sampling(request, body)
    request.sampling.logprobs = body.boolean("logprobs") or False
    if (top := body.integer("top_logprobs")) is not None:
        request.sampling.top_logprobs = top
    set_stop(request, body, "stop")
    set_labels(request, body)
    _set_format(request, body)
    stream = body.boolean("stream") or False
    names = {"max_output_tokens": limit_name, "grammar": "response_format", "prompt": "messages", **LABEL_NAMES}
    return Asked(request, stream, include_usage(body, stream), names)


def _set_format(request: pb.GenerateRequest, body: Fields) -> None:
    if (body.items("modalities") or ["text"]) != ["text"]:
        raise invalid("modalities", "only text is served")
    if (form := body.object("response_format")) is not None:
        described = form.object("json_schema")
        set_grammar(request, form, described.raw("schema") if described is not None else None)


def _messages(body: Fields) -> list[pb.Message]:
    items = body.items("messages")
    if not items:
        raise invalid("messages", "expected at least one message")
    return [_message(as_object(item, f"messages[{at}]")) for at, item in enumerate(items)]


def _message(fields: Fields) -> pb.Message:
    role = fields.text("role")
    if role not in _ROLES:
        raise invalid(fields.where("role"), f"expected one of {', '.join(_ROLES)}")
    return pb.Message(
        role=role,
        content=_content(fields),
        name=fields.text("name") or "",
        tool_calls=assistant_calls(fields),
        tool_call_id=fields.text("tool_call_id") or "",
    )


def _content(fields: Fields) -> str:
    content = fields.raw("content")
    if isinstance(content, str):
        return content
    if content is None and fields.text("role") == "assistant":
        return ""
    if not isinstance(content, list):
        raise invalid(fields.where("content"), "expected a string or an array of text parts")
    return "".join(text_part(part, f"{fields.where('content')}[{at}]", ("text",)) for at, part in enumerate(content))


def text_part(part: object, path: str, types: tuple[str, ...]) -> str:
    """One part of a message's content."""
    inner = as_object(part, path)
    if inner.text("type") not in types:
        raise invalid(f"{path}.type", "only text parts are served")
    if (text := inner.text("text")) is None:
        raise invalid(f"{path}.text", "is required")
    return text


def _set_limits(request: pb.GenerateRequest, body: Fields) -> str:
    """Returns the name by which this client knows the output limit."""
    older, newer = body.integer("max_tokens"), body.integer("max_completion_tokens")
    if older is not None and newer is not None and older != newer:
        raise invalid("max_tokens", "differs from max_completion_tokens")
    name = "max_completion_tokens" if newer is not None else "max_tokens"
    set_output_limit(request, body, name)
    if (n := body.integer("n")) is not None:
        request.n = n
    return name
