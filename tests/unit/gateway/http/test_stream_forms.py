"""Every format over any sequence of events: valid JSON, all the text, one ending, and numbers without gaps."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_gateway.http.answer import Answer
from headrace_gateway.http.api import Head
from headrace_gateway.http.chat_format import ChatStream, completion
from headrace_gateway.http.completions_format import CompletionStream
from headrace_gateway.http.messages.format import MessageStream, whole_message
from headrace_gateway.http.responses.stream import ResponseStream
from headrace_gateway.lifecycle import outputs
from headrace_gateway.parsed_stream import ParsedDelta, ParsedEvent, ToolCallDelta
from tests.unit.gateway.http.fakes import HEAD, asked, delta, ended

ONE = Head("resp_1", 'a "model"', 1, num_choices=1, num_prompt_tokens=7)
ENDINGS = st.sampled_from(
    [("completed", "stop"), ("incomplete", "length"), ("incomplete", "content_filter"), ("failed", "engine_error"),
     ("cancelled", "client")]
)  # fmt: skip
TEXTS = st.text(min_size=1, max_size=8)


def _reasoning(text: str) -> ParsedDelta:
    return ParsedDelta(0, 0, "", 1, (), reasoning=text)


def _text(text: str) -> ParsedDelta:
    return ParsedDelta(0, 0, text, 1, ())


@st.composite
def parsed_events(draw: Any) -> list[ParsedEvent]:
    """Thoughts, text and calls of one choice, in any order that parsers can give."""
    events: list[ParsedEvent] = []
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "reasoning", "call"]), max_size=6)):
        if kind != "call":
            make = _text if kind == "text" else _reasoning
            events += [make(text) for text in draw(st.lists(TEXTS, min_size=1, max_size=3))]
            continue
        events.append(ParsedDelta(0, 0, "", 1, (), tool_call=ToolCallDelta(num_calls, "call_1", draw(TEXTS), "")))
        for text in draw(st.lists(TEXTS, max_size=3)):
            events.append(ParsedDelta(0, 0, "", 1, (), tool_call=ToolCallDelta(num_calls, "", "", text)))
        num_calls += 1
    return events


def texts_of(events: list[ParsedEvent], channel: str) -> str:
    return "".join(getattr(event, channel) for event in events)


def arguments_of(events: list[ParsedEvent]) -> str:
    return "".join(event.tool_call.arguments for event in events if isinstance(event, ParsedDelta) and event.tool_call)


def write(form: Any, events: list[ParsedEvent], ending: tuple[str, str]) -> list[tuple[str, Any]]:
    """The stream as its client parses it: (event name, data)."""
    closing: list[ParsedEvent] = [ended(*ending)]
    if ending[0] in ("completed", "incomplete"):
        closing.insert(0, outputs.ChoiceFinished(0, 0, ending[1], 3))
    raw = form.opening() + b"".join(form.written(event) for event in [*events, *closing])
    told = []
    for block in raw.decode().removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        data = fields["data"]
        told.append((fields.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return told


@given(parsed_events(), ENDINGS)
def test_chat(events: list[ParsedEvent], ending: tuple[str, str]) -> None:
    told = [data for _, data in write(ChatStream(ONE, asked()), events, ending)]
    good = ending[0] in ("completed", "incomplete")
    assert (told[-1] == "[DONE]") == good
    assert ("error" in told[-1]) == (not good)
    choices = [data["choices"][0] for data in told[:-1]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == [ending[1]] * good
    deltas = [choice["delta"] for choice in choices]
    assert "".join(part.get("content", "") for part in deltas) == texts_of(events, "text")
    assert "".join(part.get("reasoning_content", "") for part in deltas) == texts_of(events, "reasoning")
    pieces = [piece["function"]["arguments"] for part in deltas for piece in part.get("tool_calls", [])]
    assert "".join(pieces) == arguments_of(events)
    assert {data["id"] for data in told[:-1]} == {"resp_1"}


@given(parsed_events(), ENDINGS)
def test_responses(events: list[ParsedEvent], ending: tuple[str, str]) -> None:
    told = write(ResponseStream(ONE, asked()), events, ending)
    assert [data["sequence_number"] for _, data in told] == list(range(len(told)))
    assert all(name == data["type"] for name, data in told)
    endings = [name for name, _ in told if name in ("response.completed", "response.incomplete", "response.failed")]
    assert endings == [told[-1][0]]
    deltas: dict[str, str] = {}
    for name, data in told:
        if name.endswith(".delta"):
            deltas[data["item_id"]] = deltas.get(data["item_id"], "") + data["delta"]
    final = told[-1][1]["response"]["output"]
    for item in final:
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert text == deltas.get(item["id"], "")
    assert final == [data["item"] for name, data in told if name.endswith("item.done")] or ending[0] not in (
        "completed",
        "incomplete",
    )
    added = [data["output_index"] for name, data in told if name.endswith("item.added")]
    assert added == list(range(len(final)))


@given(parsed_events(), ENDINGS)
def test_messages(events: list[ParsedEvent], ending: tuple[str, str]) -> None:
    told = write(MessageStream(ONE, asked()), events, ending)
    assert all(name == data["type"] for name, data in told)
    good = ending[0] in ("completed", "incomplete")
    assert told[-1][0] == ("message_stop" if good else "error")
    starts = [data["index"] for name, data in told if name == "content_block_start"]
    stops = [data["index"] for name, data in told if name == "content_block_stop"]
    assert starts == list(range(len(starts)))
    assert stops == (starts if good else starts[:-1])
    pieces = [data["delta"] for name, data in told if name == "content_block_delta"]
    assert "".join(piece.get("text", "") for piece in pieces) == texts_of(events, "text")
    assert "".join(piece.get("thinking", "") for piece in pieces) == texts_of(events, "reasoning")
    assert "".join(piece.get("partial_json", "") for piece in pieces) == arguments_of(events)


@given(st.lists(TEXTS), ENDINGS, st.booleans())
def test_completions(texts: list[str], ending: tuple[str, str], include_usage: bool) -> None:
    events: list[ParsedEvent] = [delta(text) for text in texts]
    told = [data for _, data in write(CompletionStream(ONE, asked(include_usage=include_usage)), events, ending)]
    good = ending[0] in ("completed", "incomplete")
    assert (told[-1] == "[DONE]") == good
    chunks = [data for data in told[:-1] if data["choices"]]
    assert "".join(data["choices"][0]["text"] for data in chunks) == "".join(texts)
    assert len([data for data in told[:-1] if not data["choices"]]) == (good and include_usage)


def test_choices_keep_apart() -> None:
    form = ChatStream(HEAD, asked())
    chunks = [form.written(delta("a", 1)), form.written(outputs.ChoiceFinished(0, 0, "length", 1))]
    read = [json.loads(chunk.decode().removeprefix("data: "))["choices"][0] for chunk in chunks]
    assert [choice["index"] for choice in read] == [1, 0]
    assert form.opening().count(b'"role":"assistant"') == 2


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
def test_a_whole_answer_says_the_same(reason: str) -> None:
    answer = Answer(1)
    call = ToolCallDelta(0, "call_1", "f", "")
    for event in (
        _reasoning("hm"), _text("a"), _text("b"), ParsedDelta(0, 0, "", 1, (), tool_call=call),
        ParsedDelta(0, 0, "", 1, (), tool_call=ToolCallDelta(0, "", "", '{"x": 1}')),
        outputs.ChoiceFinished(0, 0, reason, 3), ended(),
    ):  # fmt: skip
        answer.add(event)
    chat = completion(ONE, answer)["choices"][0]
    assert (chat["message"]["content"], chat["message"]["reasoning_content"]) == ("ab", "hm")
    assert chat["finish_reason"] == reason
    assert chat["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
    blocks = whole_message(ONE, answer)["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    assert blocks[2]["input"] == {"x": 1}


def test_a_call_that_was_cut_deep_inside_has_no_arguments() -> None:
    answer = Answer(1)
    deep = '{"x":' + "[" * 100_000
    for event in (
        ParsedDelta(0, 0, "", 1, (), tool_call=ToolCallDelta(0, "call_1", "f", deep)),
        outputs.ChoiceFinished(0, 0, "length", 3), ended(),
    ):  # fmt: skip
        answer.add(event)
    assert whole_message(ONE, answer)["content"][-1]["input"] == {}
