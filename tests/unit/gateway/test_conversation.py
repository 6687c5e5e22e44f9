"""Conversations as templates take them: calls and tools checked, and a forced call as a schema."""

import json

import pytest

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.conversation import (
    callable_names,
    check_conversation,
    forced_call_schema,
    forced_names,
    template_messages,
    template_tools,
)
from headrace_kit.errors import HeadraceError

WEATHER = pb.Tool(name="weather", description="d", parameters='{"type": "object", "properties": {"city": {}}}')
CLOCK = pb.Tool(name="clock")


def chat(*messages: pb.Message, tools: tuple[pb.Tool, ...] = (), tool_choice: str = "") -> pb.Conversation:
    return pb.Conversation(messages=messages or [pb.Message(role="user")], tools=tools, tool_choice=tool_choice)


def refused(conversation: pb.Conversation, *, takes_tools: bool = True) -> str:
    with pytest.raises(HeadraceError) as caught:
        check_conversation(conversation, takes_tools=takes_tools)
    assert caught.value.reason == "invalid_argument" and caught.value.field is not None
    return caught.value.field


def test_what_is_wrong_is_named() -> None:
    call = pb.ToolCall(name="f", arguments="no JSON")
    assert refused(pb.Conversation()) == "messages"
    assert refused(chat(pb.Message(role="x"))) == "messages[0].role"
    assert refused(chat(pb.Message(role="user", tool_calls=[call]))) == "messages[0].tool_calls"
    where = "messages[0].tool_calls[0].function.arguments"
    assert refused(chat(pb.Message(role="assistant", tool_calls=[call]))) == where
    assert refused(chat(tools=(WEATHER,)), takes_tools=False) == "tools"
    assert refused(chat(tools=(WEATHER, WEATHER))) == "tools[1].function.name"
    assert refused(chat(tools=(pb.Tool(name=""),))) == "tools[0].function.name"
    assert refused(chat(tools=(pb.Tool(name="f", parameters="[]"),))) == "tools[0].function.parameters"
    assert refused(chat(tools=(WEATHER,), tool_choice="clock")) == "tool_choice"
    assert refused(chat(tool_choice="required")) == "tool_choice"


def test_templates_get_arguments_as_objects() -> None:
    turn = pb.Message(role="assistant", tool_calls=[pb.ToolCall(id="c", name="f", arguments='{"a": 1}')])
    shown = template_messages([turn, pb.Message(role="tool", content="x", tool_call_id="c")])
    assert shown[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert shown[1] == {"role": "tool", "content": "x", "tool_call_id": "c"}


def test_no_tool_is_shown_where_none_may_be_called() -> None:
    assert template_tools(chat(tools=(WEATHER,), tool_choice="none")) is None
    assert callable_names(chat(tools=(WEATHER,), tool_choice="none")) == frozenset()
    shown = template_tools(chat(tools=(WEATHER, CLOCK)))
    assert shown is not None
    assert [tool["function"]["name"] for tool in shown] == ["weather", "clock"]
    assert shown[0]["function"]["parameters"]["properties"] == {"city": {}}


@pytest.mark.parametrize(
    ("choice", "names"), [("", set()), ("auto", set()), ("none", set()), ("required", {"weather", "clock"}),
                          ("clock", {"clock"})]
)  # fmt: skip
def test_which_calls_are_forced(choice: str, names: set[str]) -> None:
    assert forced_names(chat(tools=(WEATHER, CLOCK), tool_choice=choice)) == names


def test_a_forced_call_is_a_schema() -> None:
    one = json.loads(forced_call_schema(chat(tools=(WEATHER, CLOCK), tool_choice="weather")))
    assert one["properties"]["name"] == {"const": "weather"}
    assert one["properties"]["arguments"]["properties"] == {"city": {}}
    any_of = json.loads(forced_call_schema(chat(tools=(WEATHER, CLOCK), tool_choice="required")))["anyOf"]
    assert [call["properties"]["name"]["const"] for call in any_of] == ["weather", "clock"]
    assert any_of[1]["properties"]["arguments"] == {"type": "object"}


def test_every_name_in_a_conversation_is_bounded() -> None:
    long = "x" * 257
    user, assistant = pb.Message(role="user", name=long), pb.Message(role="tool", tool_call_id=long)
    assert refused(chat(pb.Message(role="user"), user)) == "messages[1].name"
    assert refused(chat(assistant)) == "messages[0].tool_call_id"
    calls = {"id": pb.ToolCall(id=long, name="f"), "function.name": pb.ToolCall(name=long)}
    for name, call in calls.items():
        turn = pb.Message(role="assistant", tool_calls=[pb.ToolCall(name="f"), call])
        assert refused(chat(turn)) == f"messages[0].tool_calls[1].{name}"


def test_the_number_of_messages_and_calls_is_bounded() -> None:
    assert refused(chat(*[pb.Message(role="user")] * 4097)) == "messages"
    turn = pb.Message(role="assistant", tool_calls=[pb.ToolCall(name="f")] * 129)
    assert refused(chat(turn)) == "messages[0].tool_calls"
