"""Calls between `<tool_call>` tags: streamed as they come, the same for any cut, and never whole when they are not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_gateway.parsing.hermes import HermesParser
from headrace_gateway.parsing.parts import CallPart, Part, Text, merged

ARGUMENTS = '{"city": "Pa\\"ris}", "deep": {"a": [1, "]}"]}}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'


def parse(*texts: str) -> tuple[list[Part], bool]:
    parser = HermesParser()
    parts = [part for text in texts for part in parser.feed(text)]
    return merged(parts + parser.finish()), parser.called


def test_a_call_becomes_its_name_and_its_arguments() -> None:
    parts, called = parse(CALL)
    assert parts == [CallPart(0, "weather", ""), CallPart(0, "", ARGUMENTS)]
    assert called


def test_text_around_calls_stays_text_and_calls_are_numbered() -> None:
    parts, called = parse(f"Let me look.\n{CALL}\n{CALL}\n")
    assert parts[0] == Text("Let me look.\n")
    assert [part.index for part in parts if isinstance(part, CallPart)] == [0, 0, 1, 1]
    assert called


PIECES = st.lists(
    st.sampled_from([
        CALL, "text ", "\n", "<tool", "</tool_call>", "<tool_call>", '{"name": "f"}', '{"name": 5}',
        '<tool_call>{"arguments": {"x": 1}, "name": "late"}</tool_call>', '<tool_call>{"name": "f", "arguments": {"a',
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "<tool_call>no call</tool_call>", "é😀",
        '<tool_call>{"name": "f", "arguments": {"a": nonsense}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": null}</tool_call>', '<tool_call>{"other": 1, "name": "f"}</tool_call>',
    ]),
    max_size=6,
).map("".join)  # fmt: skip


@given(PIECES, st.data())
def test_no_cut_changes_anything(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(*pieces) == parse(text) == parse(*text)


@given(st.text(max_size=60))
def test_text_without_a_tag_is_untouched(text: str) -> None:
    if "<tool_call>" not in text:
        assert parse(*text)[0] == ([Text(text)] if text else [])


@pytest.mark.parametrize("size", range(len("<tool_call>"), len(CALL) - len("\n</tool_call>") - 1))
def test_a_cut_call_is_never_whole(size: int) -> None:
    parts, called = parse(CALL[:size])
    assert not called
    streamed = "".join(part.arguments for part in parts if isinstance(part, CallPart))
    assert ARGUMENTS.startswith(streamed)


def test_what_is_in_the_tags_and_no_call_is_text() -> None:
    parts, called = parse("<tool_call>not JSON</tool_call>")
    assert "".join(part.text for part in parts if isinstance(part, Text)) == "<tool_call>not JSON</tool_call>"
    assert not called


@pytest.mark.parametrize(
    "written", ['"{\\"a\\": 1}"', "null", '{"a": 1}']
)  # as a string, as nothing, as an object: each is what a function can read
def test_arguments_are_an_object(written: str) -> None:
    parts, called = parse(f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>')
    given_arguments = "".join(part.arguments for part in parts if isinstance(part, CallPart))
    assert isinstance(json.loads(given_arguments), dict)
    assert called


def test_arguments_that_are_no_json_make_no_whole_call() -> None:
    _, called = parse('<tool_call>{"name": "f", "arguments": {"a": nonsense}}</tool_call>')
    assert not called
