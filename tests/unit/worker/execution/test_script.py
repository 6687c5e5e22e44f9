"""The scripted engine's language: what a prompt compiles to, and when a cursor lets a token out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.execution.script import BOS, EOS, IM_END, IM_START, Cursor, Fail, compile_script, script_bytes


def chat(*messages: tuple[str, str]) -> list[int]:
    ids = [BOS]
    for role, content in messages:
        ids += [IM_START, *role.encode(), 10, *content.encode(), IM_END, 10]
    return [*ids, IM_START, *b"assistant", 10]


def run(prompt: list[int], count: int) -> list[object]:
    cursor = Cursor(compile_script(prompt))
    return [cursor.advance(0.0) for _ in range(count)]


def completion(text: str) -> list[int]:
    return [BOS, *text.encode()]


def test_one_user_message_hi_is_22_tokens() -> None:
    assert len(chat(("user", "hi"))) == 22


def test_the_script_is_the_last_user_message() -> None:
    messages = chat(("system", "s"), ("user", "first"), ("assistant", "x"), ("user", '["b"]'), ("tool", "y"))
    assert script_bytes(messages) == b'["b"]'
    assert run(messages, 3) == [98, EOS, EOS]


def test_a_completion_is_its_whole_text() -> None:
    assert run(completion('["a", "bc", 259, [1, 2]]'), 5) == [97, 260, 259, 261, EOS]


def test_the_same_bytes_are_the_same_piece() -> None:
    script = compile_script(completion('["ab", [97, 98], "cd", ""]'))
    assert script.pieces == (b"ab", b"cd", b"")
    assert run(completion('["ab", [97, 98], "cd", ""]'), 4) == [260, 260, 261, 262]


@pytest.mark.parametrize("text", ["hello", "[1.5]", "[true]", "[null]", "[[256]]", '["a"', "{}", '"x"', "[" * 100_000])
def test_what_is_no_script_is_echoed_character_by_character(text: str) -> None:
    assert run(completion(text), len(text) + 1) == [*text.encode(), EOS]


def test_bytes_that_are_no_text_are_echoed_as_they_are() -> None:
    assert run([BOS, 97, 0xFF, 98], 4) == [97, 0xFF, 98, EOS]


@pytest.mark.parametrize("element", ["!", "!erro", "!rate(0)", "!stall(x)", "!repeat(2)", "! err", "!die()"])
def test_a_string_that_is_no_directive_is_text(element: str) -> None:
    script = compile_script(completion(json.dumps([element])))
    assert script.pieces in ((element.encode(),), ())
    assert len(script.operations) == 1


def test_an_error_comes_after_the_tokens_before_it() -> None:
    assert run(completion('["a", "!err", "b"]'), 2) == [97, Fail()]


def test_an_id_that_no_vocabulary_has_is_an_error_and_one_of_another_vocabulary_is_not() -> None:
    assert run(completion(f"[999, -1, {2**32}]"), 2) == [999, Fail()]


def test_repeat_is_not_unrolled() -> None:
    script = compile_script(completion('["!repeat(999999999999,a)b)"]'))
    assert len(script.operations) == 1
    assert script.pieces == (b"a)b",)
    assert run(completion('["!repeat(2,x)", "!repeat(0,y)", "z"]'), 4) == [120, 120, 122, EOS]


def test_a_stall_ends_when_it_said() -> None:
    cursor = Cursor(compile_script(completion('["a", "!stall(2.5)", "b"]')))
    assert cursor.advance(10.0) == 97
    assert cursor.advance(10.0) == 12.5
    assert cursor.advance(12.4) == 12.5
    assert cursor.advance(12.5) == 98


@given(rate=st.integers(1, 1000), count=st.integers(1, 50))
def test_a_rate_spaces_the_tokens_that_follow(rate: int, count: int) -> None:
    cursor = Cursor(compile_script(completion(f'["!rate({rate})", "!repeat({count},x)"]')))
    now = 5.0
    times: list[float] = []
    while len(times) < count:
        outcome = cursor.advance(now)
        if isinstance(outcome, float):
            assert outcome > now
            now = outcome
        else:
            times.append(now)
    assert times[-1] - times[0] == pytest.approx((count - 1) / rate)


@given(st.lists(st.integers(0, 259), max_size=200))
def test_no_prompt_breaks_the_compiler(ids: list[int]) -> None:
    script = compile_script(ids)
    assert len(script.operations) <= len(ids)


@given(st.text())
def test_any_text_is_echoed_exactly(text: str) -> None:
    data = text.encode()
    script = compile_script([BOS, *b"!", *data])
    cursor, echoed = Cursor(script), b""
    while (token := cursor.advance(0.0)) != EOS:
        assert isinstance(token, int)
        echoed += bytes([token]) if token < 256 else script.pieces[token - 260]
    assert echoed == b"!" + data
