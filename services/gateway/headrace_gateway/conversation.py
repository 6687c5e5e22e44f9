"""A conversation as chat templates expect it: messages, calls and tools as plain mappings; every field checked."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.labels import check_length
from headrace_gateway.nesting import MAX_NESTING, nests_too_deep
from headrace_kit.errors import HeadraceError

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_CALLS = 128
MAX_TOOL_NAME_CHARS = 128
ROLES = ("system", "developer", "user", "assistant", "tool")


def check_conversation(chat: pb.Conversation, *, takes_tools: bool) -> None:
    """Raises invalid_argument that names the field."""
    if not chat.messages:
        raise _invalid("messages", "expected at least one message")
    if len(chat.messages) > MAX_MESSAGES:
        raise _invalid("messages", f"at most {MAX_MESSAGES}, got {len(chat.messages)}")
    for place, message in enumerate(chat.messages):
        _check_message(message, f"messages[{place}]")
    if chat.tools and not takes_tools:
        raise _invalid("tools", "this model's chat template knows no tools")
    _check_tools(chat)


def template_messages(messages: Sequence[pb.Message]) -> list[dict[str, Any]]:
    """Empty optional fields are absent."""
    return [_template_message(message) for message in messages]


def template_tools(chat: pb.Conversation) -> list[dict[str, Any]] | None:
    """None where the model is to call nothing."""
    if not chat.tools or chat.tool_choice == "none":
        return None
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": json.loads(tool.parameters or "{}"),
            },
        }
        for tool in chat.tools
    ]


def written_texts(chat: pb.Conversation) -> Iterator[str]:
    """Every text of it that a template may show."""
    for message in chat.messages:
        yield from filter(None, (message.name, message.content))
        for call in message.tool_calls:
            yield call.name
            yield from _texts_in(json.loads(call.arguments or "{}"))
    for tool in chat.tools if chat.tool_choice != "none" else ():
        yield from (tool.name, tool.description)
        yield from _texts_in(json.loads(tool.parameters or "{}"))


def forced_names(chat: pb.Conversation) -> frozenset[str]:
    """The functions of which one has to be called; empty where the model may choose."""
    if chat.tool_choice in ("", "auto", "none"):
        return frozenset()
    return callable_names(chat) if chat.tool_choice == "required" else frozenset((chat.tool_choice,))


def forced_call_schema(chat: pb.Conversation) -> str:
    """A JSON schema of one call of a forced function, without the tags that a model might write around it."""
    names = forced_names(chat)
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                "arguments": json.loads(tool.parameters or '{"type":"object"}'),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in chat.tools
        if tool.name in names
    ]
    return json.dumps(calls[0] if len(calls) == 1 else {"anyOf": calls}, separators=(",", ":"))


def callable_names(chat: pb.Conversation) -> frozenset[str]:
    """Names of the functions that the model may call."""
    return frozenset() if chat.tool_choice == "none" else frozenset(tool.name for tool in chat.tools)


def _texts_in(value: Any) -> Iterator[str]:
    """The strings of a JSON value, names too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)


def _template_message(message: pb.Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    optional = {"name": message.name, "tool_call_id": message.tool_call_id}
    shown |= {key: text for key, text in optional.items() if text}
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments or "{}")},
            }
            for call in message.tool_calls
        ]
    return shown


def _check_message(message: pb.Message, path: str) -> None:
    if message.role not in ROLES:
        raise _invalid(f"{path}.role", f"expected one of {', '.join(ROLES)}")
    check_length(f"{path}.name", message.name)
    check_length(f"{path}.tool_call_id", message.tool_call_id)
    if message.tool_calls and message.role != "assistant":
        raise _invalid(f"{path}.tool_calls", "only an assistant makes calls")
    if len(message.tool_calls) > MAX_CALLS:
        raise _invalid(f"{path}.tool_calls", f"at most {MAX_CALLS}, got {len(message.tool_calls)}")
    for number, call in enumerate(message.tool_calls):
        check_length(f"{path}.tool_calls[{number}].id", call.id)
        check_length(f"{path}.tool_calls[{number}].function.name", call.name)
        _json_object(call.arguments or "{}", f"{path}.tool_calls[{number}].function.arguments")


def _check_tools(chat: pb.Conversation) -> None:
    if len(chat.tools) > MAX_TOOLS:
        raise _invalid("tools", f"at most {MAX_TOOLS}, got {len(chat.tools)}")
    names = set()
    for place, tool in enumerate(chat.tools):
        if not 1 <= len(tool.name) <= MAX_TOOL_NAME_CHARS:
            raise _invalid(f"tools[{place}].function.name", f"must have 1 to {MAX_TOOL_NAME_CHARS} characters")
        if tool.name in names:
            raise _invalid(f"tools[{place}].function.name", f"{tool.name!r} is there twice")
        names.add(tool.name)
        _json_object(tool.parameters or "{}", f"tools[{place}].function.parameters")
    if chat.tool_choice in ("", "auto", "none"):
        return
    if chat.tool_choice != "required" and chat.tool_choice not in names:
        raise _invalid("tool_choice", f"{chat.tool_choice[:40]!r} names no tool of this request")
    if not names:
        raise _invalid("tool_choice", "needs tools")


def _json_object(text: str, path: str) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise _invalid(path, "is not JSON") from None
    if nests_too_deep(text, value):
        raise _invalid(path, f"is nested too deeply: at most {MAX_NESTING} arrays and objects inside one another")
    if not isinstance(value, dict):
        raise _invalid(path, "expected a JSON object")


def _invalid(name: str, problem: str) -> HeadraceError:
    return HeadraceError("invalid_argument", f"{name}: {problem}", field=name)
