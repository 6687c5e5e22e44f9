"""Held, replaced, ended: B162, B163, and that the outcome never depends on how a text is cut into deltas."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace_policy.screening.rule import Definition, Rule, compile_rule
from tests.unit.policy.screening.reference import Outcome, deliver, pieces


def rule(name: str, detector: str, *values: str, action: str = "block", replacement: str = "*") -> Rule:
    return compile_rule(Definition(name, detector, "both", action, values, replacement=replacement))


FRUIT = [rule("fruit", "blocklist", "persimmon")]
EMAIL = [rule("mail", "pii", "email", action="redact", replacement="[mail]")]
EVERYTHING = [
    rule("words", "blocklist", "badword", "two words", "ab", "abc d", "naïve", action="block"),
    rule("mild", "blocklist", "darn", "abba", action="flag"),
    rule("digits", "regex", r"\d{4,}", r"ab+c|a(?:bcd|b)x", action="redact", replacement="#"),
    rule("ends", "regex", r"\bcat\b", r"dog$", r"(?i)STOP(?: it)?", action="redact", replacement="@"),
    rule("pii", "pii", action="redact", replacement="[pii]"),
    rule("loop", "repetition", "3"),
]
FRAGMENTS = [
    "badword",
    "two  ",
    "two words",
    "ab",
    "abc",
    " d",
    "NAÏVE",
    "nai\u0308ve",
    "\u200b",
    "darn",
    "1234",
    "12",
    "abbb",
    "abcdx",
    "cat",
    "cats",
    "dog",
    "stop it",
    "user@exa",
    "mple.com",
    "4111 1111 ",
    "1111 1111",
    " ",
    ".",
    "x",
    "é",
    "GB82 WEST 1234 ",
    "5698 7654 32",
    "+49 30 1234567",
    "bad",
    "word",
    "sk-",
    "a" * 30,
    "\n",
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
PATTERNS = ["a+b?c*d", r"(ab|abcd)+", r"\ba.b", r"[^a]{2}a", "a??b", r"(?s)a.+?b", r"b\B", r"^ab", r"(?m)^a"]
PATTERNS += ["(?i)A[b-d]{1,3}$", r"a(?:b|bc)(?:cd|d)*", r"(?:a|b)*c\s"]
DISGUISES = ["PERSIMMON", "pérsimmon", "per\u200bsimmon", "ｐｅｒｓｉｍｍｏｎ", "(persimmon)", "persimmon!"]
cuts = st.lists(st.integers(0, 400), max_size=30)


@settings(max_examples=max(150, settings().max_examples))
@given(texts, cuts)
@example("a\u200bcat badword", [2])
@example("4111 1111 1111 1111", [3, 9])
def test_the_outcome_does_not_depend_on_the_cuts(text: str, places: list[int]) -> None:
    whole = deliver(EVERYTHING, [text])
    assert deliver(EVERYTHING, pieces(text, places)) == whole
    assert deliver(EVERYTHING, list(text) or [""]) == whole


@settings(max_examples=max(150, settings().max_examples))
@given(st.text("abcd 1é.\n", max_size=40), cuts, st.sampled_from(PATTERNS))
def test_every_pattern_is_found_in_pieces_as_in_the_whole(text: str, places: list[int], pattern: str) -> None:
    rules = [rule("r", "regex", pattern, action="redact")]
    assert deliver(rules, pieces(text, places)) == deliver(rules, [text])


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_banned_word_in_two_deltas_is_not_delivered(cut: int) -> None:
    word = "persimmon"
    got = deliver(FRUIT, ["I like ", word[:cut], word[cut:], " a lot"])
    assert got == Outcome("I like ", "blocked", "fruit")


def test_nothing_of_a_banned_word_at_the_end_is_delivered() -> None:
    assert deliver(FRUIT, ["I like persimmon"], end=False).delivered == "I like "
    assert deliver(FRUIT, ["I like persimmon"]) == Outcome("I like ", "blocked", "fruit")


@pytest.mark.parametrize("text", ["persimmons", "superpersimmon", "persimmo", "persi mmon"])
def test_a_longer_or_shorter_word_is_another_word(text: str) -> None:
    assert deliver(FRUIT, [*text]) == Outcome(text, "passed", "")


@pytest.mark.parametrize("text", DISGUISES)
def test_a_word_is_found_under_its_disguises(text: str) -> None:
    assert deliver(FRUIT, [*text, " end"]).verdict == "blocked"


def test_an_address_in_two_deltas_is_replaced_and_no_fragment_of_it_shown() -> None:
    got = deliver(EMAIL, ["write to user@exa", "mple.com today"])
    assert got == Outcome("write to [mail] today", "passed", "")


def test_benign_text_is_held_no_longer_than_it_could_be_a_match() -> None:
    shown = [deliver(FRUIT, ["it is person"[:n]], end=False).delivered for n in range(13)]
    assert shown[:7] == ["", "i", "it", "it ", "it i", "it is", "it is "]
    assert shown[7:11] == ["it is "] * 4
    assert shown[11:] == ["it is perso", "it is person"]


def test_what_no_rule_can_want_goes_at_once() -> None:
    text = "nothing of interest here"
    assert deliver(FRUIT, [text], end=False) == Outcome(text, "", "")


def test_a_flagged_text_is_delivered_and_says_by_what() -> None:
    assert deliver([rule("mild", "blocklist", "darn", action="flag")], ["oh darn it"]) == Outcome(
        "oh darn it", "flagged", "mild"
    )


def test_the_first_of_two_blocks_in_the_text_counts() -> None:
    rules = [rule("b", "blocklist", "beta"), rule("a", "blocklist", "alpha")]
    assert deliver(rules, ["say alpha and beta"]) == Outcome("say ", "blocked", "a")


def test_a_replaced_span_that_a_block_cuts_is_not_delivered_in_part() -> None:
    rules = [rule("n", "regex", r"\d+x\d+", action="redact"), rule("x", "regex", r"x\d+!")]
    assert deliver(rules, ["abc 12x34! more"]) == Outcome("abc ", "blocked", "x")


def test_a_loop_is_ended_where_it_became_one() -> None:
    text = "so it goes " * 10
    got = deliver([rule("loop", "repetition", "4")], [*text])
    assert got.verdict == "blocked" and text.startswith(got.delivered) and 40 < len(got.delivered) < 60
    assert deliver([rule("loop", "repetition", "4")], ["a b c d e f g h " * 3]).verdict == "passed"
