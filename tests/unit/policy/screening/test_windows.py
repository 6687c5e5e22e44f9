"""Windows of a text for guards, and what a gate lets through: every code point is asked about, none is shown before."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace_policy.screening.gate import Gate
from headrace_policy.screening.jury import Opinion
from headrace_policy.screening.rule import Definition, compile_rule
from headrace_policy.screening.ruleset import choose
from headrace_policy.screening.screener import Decision
from headrace_policy.screening.windows import MOST, WINDOW_S, Windows

GUARD = compile_rule(Definition("guard", "guard", guard_model="g"))
MAIL = compile_rule(Definition("mail", "pii", "output", "redact", ("email",), replacement="[mail]"))
FRUIT = compile_rule(Definition("fruit", "blocklist", values=("persimmon",)))
CLEAN = Opinion()


def gate(*rules: str) -> Gate:
    known = {"guard": GUARD, "mail": MAIL, "fruit": FRUIT}
    return Gate(choose(known, ["guard", *rules]))


def ask(gate: Gate, now: float, opinion: Opinion = CLEAN) -> Decision:
    return gate.judged(gate.windows.question(now), opinion)


def test_a_window_is_due_when_its_time_is_over_and_not_before() -> None:
    windows = Windows()
    assert windows.due_in(0.0) is None
    windows.feed("a", False, 10.0)
    windows.feed("b", False, 10.2)
    assert windows.due_in(10.2) is not None and round(windows.due_in(10.2) or 0, 6) == 0.05
    assert windows.due_in(10.0 + WINDOW_S) == 0.0
    assert windows.question(10.25).text == "ab"
    assert windows.due_in(99.0) is None


def test_a_full_window_and_the_end_of_the_text_do_not_wait() -> None:
    windows = Windows()
    windows.feed("x" * MOST, False, 0.0)
    assert windows.due_in(0.0) == 0.0
    windows.question(0.0)
    windows.feed("y", True, 0.0)
    assert windows.due_in(0.0) == 0.0


@given(st.lists(st.tuples(st.integers(0, 3 * MOST), st.booleans()), max_size=12))
def test_every_code_point_is_in_a_question_that_a_model_can_hold(steps: list[tuple[int, bool]]) -> None:
    windows, whole, covered = Windows(), "", 0
    letters = itertools.cycle("abcdefghijklm")
    for i, (num, asks) in enumerate([*steps, (0, True)]):
        piece = "".join(itertools.islice(letters, num))
        whole += piece
        final = i == len(steps)
        windows.feed(piece, final, float(i))
        while (asks or final) and windows.due_in(i + WINDOW_S) == 0.0:
            question = windows.question(float(i))
            assert len(question.text) <= MOST and whole[: question.end].endswith(question.text)
            assert question.end - len(question.text) <= covered < question.end
            covered = question.end
            windows.clear(question)
    assert windows.cleared == covered == len(whole)


def test_text_goes_when_the_guard_has_cleared_it() -> None:
    one = gate()
    assert one.feed("fine ", False, 0.0) == Decision(0)
    question = one.windows.question(0.25)
    assert one.feed("more", False, 0.3) == Decision(0)
    assert one.judged(question, CLEAN) == Decision(5)
    assert one.feed("", True, 0.4) == Decision(5)
    assert ask(one, 0.4) == Decision(9, "passed")


def test_an_unsafe_window_ends_it_with_what_was_clear() -> None:
    one = gate()
    one.feed("fine ", False, 0.0)
    ask(one, 0.25)
    one.feed("not fine", False, 0.3)
    assert ask(one, 0.6, Opinion("blocked", "guard")) == Decision(5, "blocked", "guard")
    assert one.feed(" at all", True, 0.7) == Decision(5, "blocked", "guard")


def test_a_guard_that_is_away_ends_it_as_lost() -> None:
    one = gate()
    one.feed("who knows", True, 0.0)
    assert ask(one, 0.0, Opinion("lost", "guard")) == Decision(0, "lost", "guard")


def test_a_flagging_guard_shows_all_and_says_so() -> None:
    one = gate()
    one.feed("odd", True, 0.0)
    assert ask(one, 0.0, Opinion("flagged", "guard")) == Decision(3, "flagged", "guard")


def test_a_pattern_that_blocks_shows_only_what_the_guard_has_cleared() -> None:
    one = gate("fruit")
    one.feed("one ", False, 0.0)
    ask(one, 0.25)
    assert one.feed("two persimmon three", False, 0.3) == Decision(4, "blocked", "fruit")


def test_a_replaced_span_goes_whole_when_its_last_window_is_clear() -> None:
    one = gate("mail")
    one.feed("to user@exa", False, 0.0)
    assert ask(one, 0.25) == Decision(3)
    one.feed("mple.com now", True, 0.3)
    last = ask(one, 0.3)
    assert (last.released_up_to, last.verdict, [(r.start, r.end) for r in last.replaced]) == (23, "passed", [(3, 19)])


def test_an_empty_text_asks_nobody() -> None:
    one = gate()
    assert one.feed("", True, 0.0) == Decision(0, "passed")
    assert one.windows.due_in(1.0) is None
