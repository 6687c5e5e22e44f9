"""A body of /v1/messages as a GenerateRequest: system text, turns of content blocks, tools."""

from typing import Any

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.api import Asked
from headrace_gateway.http.chat_request import text_part
from headrace_gateway.http.fields import Fields, invalid
from headrace_gateway.http.json_text import compact
from headrace_gateway.http.known_fields import ADVISORY, KnownFields
from headrace_gateway.http.messages.blocks import read_turn
from headrace_gateway.http.options import LABEL_NAMES, as_object, set_metadata, set_model, set_output_limit, set_stop

FIELDS = KnownFields(
    api="messages",
    honoured={
        "model", "messages", "system", "max_tokens", "stop_sequences", "stream", "temperature", "top_p", "top_k",
        "tools", "tool_choice", "metadata",
    },
    advisory=ADVISORY | {"thinking", "inference_geo", "output_config", "speed"},
    refused={"container", "mcp_servers", "context_management", "output_format", "grammar", "adapter"},
)  # fmt: skip


def parse_messages(body: Fields, *, counting: bool = False) -> Asked:
    """Raises invalid_argument that names the field. `counting`: only the prompt matters, and no limit is needed."""
    FIELDS.check(body)
    request = pb.GenerateRequest()
    set_model(request, body)
    if system := _system(body):
        request.chat.messages.add(role="system", content=system)
    items = body.items("messages")
    if not items:
        raise invalid("messages", "expected at least one message")
    for at, item in enumerate(items):
        request.chat.messages.extend(read_turn(as_object(item, f"messages[{at}]")))
    _set_tools(request.chat, body)
    if body.raw("max_tokens") is None and not counting:
        raise invalid("max_tokens", "is required")
    set_output_limit(request, body, "max_tokens")
    _set_sampling(request, body)
    if isinstance(body.raw("stop_sequences"), str):
        raise invalid("stop_sequences", "expected an array")
    set_stop(request, body, "stop_sequences")
    set_metadata(request, body)
    names = {"max_output_tokens": "max_tokens", "prompt": "messages", "stop": "stop_sequences", **LABEL_NAMES}
    return Asked(request, body.boolean("stream") or False, names=names)


def _system(body: Fields) -> str:
    system = body.raw("system")
    if system is None or isinstance(system, str):
        return body.text("system") or ""
    return "".join(text_part(part, f"system[{at}]", ("text",)) for at, part in enumerate(body.items("system") or []))


def _set_sampling(request: pb.GenerateRequest, body: Fields) -> None:
    for name in ("temperature", "top_p"):
        if (number := body.number(name)) is not None:
            setattr(request.sampling, name, number)
    if (top_k := body.integer("top_k")) is not None:
        request.sampling.top_k = top_k


def _set_tools(chat: pb.Conversation, body: Fields) -> None:
    for at, item in enumerate(body.items("tools") or []):
        tool = as_object(item, f"tools[{at}]")
        if tool.text("type") not in (None, "custom"):
            raise invalid(f"tools[{at}].type", "only tools of one's own are served")
        name = tool.text("name")
        if not name:
            raise invalid(f"tools[{at}].name", "is required")
        if tool.object("input_schema") is None:
            raise invalid(f"tools[{at}].input_schema", "is required")
        parameters = compact(tool.raw("input_schema"))
        chat.tools.add(name=name, description=tool.text("description") or "", parameters=parameters)
    choice = body.object("tool_choice")
    if choice is not None:
        chat.tool_choice = _choice(choice)


def _choice(choice: Fields) -> str:
    match choice.text("type"):
        case "auto":
            return "auto"
        case "none":
            return "none"
        case "any":
            return "required"
        case "tool":
            name: Any = choice.text("name")
            if not name:
                raise invalid("tool_choice.name", "is required")
            return str(name)
        case _:
            raise invalid("tool_choice.type", "expected auto, any, tool or none")
