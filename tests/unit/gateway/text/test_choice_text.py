"""Tokens and text of one choice stay aligned: counts, log-probabilities and the token that completed a stop."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_gateway.text.choice_text import ChoiceText, TextStep
from headrace_gateway.text.detokenizer import Detokenizer
from headrace_gateway.text.stop_strings import StopStrings
from headrace_gateway.text.token_bytes import ScriptedBytes
from headrace_kit.errors import HeadraceError


def choice_text(pieces: list[bytes], stops: list[str]) -> ChoiceText:
    return ChoiceText(Detokenizer(ScriptedBytes(pieces)), StopStrings(stops) if stops else None)


def run(pieces: list[str], stops: list[str]) -> list[TextStep]:
    """One step per piece."""
    text = choice_text([piece.encode() for piece in pieces], stops)
    return [text.feed((260 + number,), (number,)) for number in range(len(pieces))]


def test_the_token_that_completes_a_stop_is_named() -> None:  # B12: completion_tokens 6
    steps = run(["Hi", "\n", "\n", "Us", "er", ":"], ["\n\nUser:"])
    assert [step.text for step in steps] == ["Hi", "", "", "", "", ""]
    assert [step.stop_at for step in steps] == [None] * 5 + [6]


def test_tokens_after_the_stop_in_the_same_frame_count_as_arrived_only() -> None:
    step = choice_text([b"a", b"b", b"c", b"d"], ["b"]).feed((260, 261, 262, 263))
    assert (step.num_tokens, step.text, step.num_shown, step.stop_at) == (4, "a", 1, 2)


def test_nothing_follows_a_stop() -> None:
    text = choice_text([b"a", b"b"], ["a"])
    assert text.feed((260,)).stop_at == 1
    assert text.feed((261,)) == TextStep(1, "", 0, (), None)
    assert text.finish() == TextStep(0, "", 0, (), None)


def test_log_probabilities_go_out_with_their_text() -> None:
    steps = run(["Hi", "\n", "\n", "Us", "a"], ["\n\nUser:"])
    assert [(step.text, step.logprobs) for step in steps if step.text] == [("Hi", (0,)), ("\n\nUsa", (1, 2, 3, 4))]


def test_log_probabilities_of_a_stop_are_never_shown() -> None:
    steps = run(["Hi", "!", "E", "ND"], ["END"])
    assert [entry for step in steps for entry in step.logprobs] == [0, 1]


def test_no_entry_for_the_end_token() -> None:  # B05: two token entries, none with the end
    text = choice_text([], [])
    steps = [text.feed((ord("a"),), ("A",)), text.feed((ord("b"),), ("B",)), text.feed((257,), ("EOS",)), text.finish()]
    assert [entry for step in steps for entry in step.logprobs] == ["A", "B"]
    assert sum(step.num_tokens for step in steps) == 3


def test_the_tokens_of_a_split_character_go_out_together() -> None:
    text = choice_text([], [])
    steps = [text.feed((byte,), (byte,)) for byte in b"\xf0\x9f\x98\x80!"]
    assert [(step.text, step.num_shown) for step in steps] == [("", 0), ("", 0), ("", 0), ("\U0001f600", 4), ("!", 1)]


def test_held_text_comes_out_at_the_end_with_its_tokens() -> None:
    text = choice_text([b"a", b"</"], ["</think>"])
    assert text.feed((260, 261)).text == "a"
    assert text.finish() == TextStep(0, "</", 1, (), None)


PIECES = st.lists(st.binary(min_size=1, max_size=3) | st.sampled_from([b"ab", b"\xf0\x9f", b"\x98\x80"]), max_size=12)


@given(PIECES, st.lists(st.text(alphabet="ab😀", min_size=1, max_size=3), max_size=3), st.data())
def test_frames_change_nothing(pieces: list[bytes], stops: list[str], data: st.DataObject) -> None:
    """However tokens are grouped into frames: same text, same stop, no shown token counted twice."""
    ids = [260 + number for number in range(len(pieces))]
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4))), len(ids)]
    frames = [ids[start:end] for start, end in pairwise(cuts)]
    whole, framed = choice_text(pieces, stops), choice_text(pieces, stops)
    expected = [whole.feed(ids, ids), whole.finish()]
    steps = [framed.feed(frame, frame) for frame in frames] + [framed.finish()]
    assert "".join(step.text for step in steps) == "".join(step.text for step in expected)
    assert [step.stop_at for step in steps if step.stop_at] == [step.stop_at for step in expected if step.stop_at]
    entries = [entry for step in steps for entry in step.logprobs]
    assert entries == ids[: len(entries)] and len(entries) == sum(step.num_shown for step in steps)
    assert all(step.text or not step.num_shown for step in steps)


@given(PIECES, st.lists(st.integers(0, 12), max_size=4))
def test_joined_tokens_without_log_probabilities_count_as_they_do_with_them(pieces: list[bytes], at: list[int]) -> None:
    """The short way for what is joined is the long way's twin."""
    ids = [260 + number for number in range(len(pieces))]
    cuts = sorted({0, len(ids), *(cut for cut in at if cut < len(ids))})
    short, long = choice_text(pieces, []), choice_text(pieces, [])
    for start, end in pairwise(cuts):
        by_short, by_long = short.feed(ids[start:end]), long.feed(ids[start:end], ids[start:end])
        assert by_short == by_long._replace(logprobs=())
    assert short.finish() == long.finish()._replace(logprobs=())


def test_a_step_ends_before_an_id_that_is_no_token() -> None:
    text = choice_text([b"a", b"b"], [])
    assert text.feed((260, 261, 999)) == TextStep(2, "ab", 2, (), None)
    with pytest.raises(HeadraceError, match="999"):
        text.feed((999,))
    assert text.feed((260,)) == TextStep(1, "a", 1, (), None)
