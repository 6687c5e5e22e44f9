"""Functions and calls of the OpenAI chat format, read into a conversation."""

from typing import Any

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.fields import Fields, invalid
from headrace_gateway.http.json_text import compact
from headrace_gateway.http.options import as_object, json_object_text


def set_tools(chat: pb.Conversation, body: Fields, *, flat: bool = False) -> None:
    """`flat`: the responses API keeps the function's fields in the tool itself."""
    for at, item in enumerate(body.items("tools") or []):
        path = f"tools[{at}]"
        tool = as_object(item, path)
        if tool.text("type") != "function":
            raise invalid(f"{path}.type", "only function tools are served")
        chat.tools.append(_function(tool if flat else _object(tool, "function")))
    chat.tool_choice = _choice(body, flat=flat)


def _function(function: Fields) -> pb.Tool:
    parameters = function.object("parameters")
    function.boolean("strict")  # advisory: nothing constrains the arguments but the model
    return pb.Tool(
        name=_required(function, "name"),
        description=function.text("description") or "",
        parameters=compact(function.raw("parameters")) if parameters is not None else "",
    )


def _choice(body: Fields, *, flat: bool) -> str:
    choice = body.raw("tool_choice")
    if choice is None or isinstance(choice, str):
        if choice not in (None, "none", "auto", "required"):
            raise invalid("tool_choice", f"expected none, auto, required or a function, not {choice[:40]!r}")
        return choice or ""
    named = as_object(choice, "tool_choice")
    if named.text("type") != "function":
        raise invalid("tool_choice.type", "expected function")
    return _required(named if flat else _object(named, "function"), "name")


def assistant_calls(fields: Fields) -> list[pb.ToolCall]:
    """The calls that an assistant turn made."""
    calls = []
    for at, item in enumerate(fields.items("tool_calls") or []):
        call = as_object(item, f"{fields.where('tool_calls')}[{at}]")
        if call.text("type") not in (None, "function"):
            raise invalid(call.where("type"), "only function calls are served")
        function = _object(call, "function")
        calls.append(
            pb.ToolCall(
                id=call.text("id") or "",
                name=_required(function, "name"),
                arguments=json_object_text(function, "arguments"),
            )
        )
    return calls


def _object(fields: Fields, name: str) -> Fields:
    inner = fields.object(name)
    if inner is None:
        raise invalid(fields.where(name), "is required")
    return inner


def _required(fields: Fields, name: str) -> str:
    text = fields.text(name)
    if not text:
        raise invalid(fields.where(name), "is required")
    return text


def call_object(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A whole call as chat completions write it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
