"""The items of a response's input as messages of a conversation."""

from typing import Any

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.chat_request import text_part
from headrace_gateway.http.fields import Fields, invalid
from headrace_gateway.http.options import as_object, json_object_text

_TEXT_TYPES = ("input_text", "output_text", "text")
_ROLES = ("system", "developer", "user", "assistant")


def read_input(body: Fields) -> list[pb.Message]:
    """A string is one user message. Calls that follow one another belong to one assistant turn."""
    given = body.raw("input")
    if isinstance(given, str):
        return [pb.Message(role="user", content=given)]
    items = body.items("input")
    if not items:
        raise invalid("input", "expected a string or an array of at least one item")
    messages: list[pb.Message] = []
    for at, item in enumerate(items):
        _add(messages, as_object(item, f"input[{at}]"))
    return messages


def _add(messages: list[pb.Message], item: Fields) -> None:
    match item.text("type"):
        case "message" | None:
            messages.append(_message(item))
        case "function_call":
            if not messages or messages[-1].role != "assistant":
                messages.append(pb.Message(role="assistant"))
            messages[-1].tool_calls.append(_call(item))
        case "function_call_output":
            output = _content(item, "output")
            messages.append(pb.Message(role="tool", content=output, tool_call_id=_required(item, "call_id")))
        case "reasoning":
            pass  # templates take no thoughts of earlier turns
        case other:
            raise invalid(item.where("type"), f"{other[:40]!r} is not served")


def _message(item: Fields) -> pb.Message:
    role = item.text("role")
    if role not in _ROLES:
        raise invalid(item.where("role"), f"expected one of {', '.join(_ROLES)}")
    return pb.Message(role=role, content=_content(item, "content"))


def _call(item: Fields) -> pb.ToolCall:
    return pb.ToolCall(
        id=_required(item, "call_id"), name=_required(item, "name"), arguments=json_object_text(item, "arguments")
    )


def _content(item: Fields, name: str) -> str:
    content: Any = item.raw(name)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(item.where(name), "expected a string or an array of text parts")
    return "".join(text_part(part, f"{item.where(name)}[{at}]", _TEXT_TYPES) for at, part in enumerate(content))


def _required(item: Fields, name: str) -> str:
    text = item.text(name)
    if not text:
        raise invalid(item.where(name), "is required")
    return text
