"""Calls as a bare object: only if it is one, names a tool, and the same for any cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_gateway.parsing.llama3 import Llama3Parser
from headrace_gateway.parsing.parts import CallPart, Part, Text, merged

TOOLS = frozenset({"weather", "f"})
CALL = '{"name": "weather", "parameters": {"city": "Paris"}}'


def parse(*texts: str) -> tuple[list[Part], bool]:
    parser = Llama3Parser(TOOLS)
    parts = [part for text in texts for part in parser.feed(text)]
    return merged(parts + parser.finish()), parser.called


def test_calls_parted_by_semicolons() -> None:
    parts, called = parse(f"{CALL}; {CALL}")
    assert [part.name for part in parts if isinstance(part, CallPart) and part.name] == ["weather", "weather"]
    assert [part.arguments for part in parts if isinstance(part, CallPart) and part.arguments] == [
        '{"city": "Paris"}',
        '{"city": "Paris"}',
    ]
    assert called


@pytest.mark.parametrize("text", ['{"answer": 42}', "plain", '{"name": "unknown", "parameters": {}}', "{", " { x", ""])
def test_an_answer_that_is_no_call_is_text(text: str) -> None:
    parts, called = parse(*text)
    assert parts == ([Text(text)] if text else [])
    assert not called


@given(
    st.lists(
        st.sampled_from([CALL, ";", " ", "\n", "text", '{"name": "f"}', '{"type": "function", "name": "f"}', "{", '"']),
        max_size=6,
    ).map("".join),
    st.data(),
)
def test_no_cut_changes_anything(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(*pieces) == parse(text) == parse(*text)


@pytest.mark.parametrize("size", range(len(CALL) - 1))
def test_a_cut_call_is_never_whole(size: int) -> None:
    assert not parse(CALL[:size])[1]
