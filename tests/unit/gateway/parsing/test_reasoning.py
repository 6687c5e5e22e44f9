"""Thinking before the answer: split at the tags wherever they are cut; nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_gateway.parsing.parts import Part, Reasoning, Text, merged
from headrace_gateway.parsing.reasoning import ReasoningParser


def parse(*texts: str, inside: bool = False) -> list[Part]:
    parser = ReasoningParser(inside=inside)
    parts = [part for text in texts for part in parser.feed(text)]
    return merged(parts + parser.finish())


def test_thinking_and_answer_part() -> None:
    assert parse("<think>\nso\n</think>\n\nyes") == [Reasoning("so"), Text("yes")]
    assert parse("so</think>yes", inside=True) == [Reasoning("so"), Text("yes")]
    assert parse("<think></think>yes") == [Text("yes")]


@pytest.mark.parametrize("end", ["answer", ""])
def test_a_fragment_that_was_no_tag_is_released(end: str) -> None:
    assert parse("a", "</", end) == [Text(f"a</{end}")]  # B20
    assert parse("a", "</", end, inside=True) == [Reasoning(f"a</{end}")]


def test_a_tag_in_the_middle_is_text() -> None:
    assert parse("see <think>x</think>") == [Text("see <think>x</think>")]


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "a", "<", "</", "think>", "é😀"]), max_size=8).map(
        "".join
    ),
    st.booleans(),
    st.data(),
)
def test_no_cut_changes_anything(text: str, inside: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(*pieces, inside=inside) == parse(text, inside=inside) == parse(*text, inside=inside)
