"""Screened output: withheld until released, replaced where a rule says so, ended for all choices by a block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_gateway.lifecycle.events import (
    AttemptLost,
    ChoiceFinal,
    PolicyLost,
    Redaction,
    ScreenBlocked,
    Screening,
    ScreenReleased,
    Tokens,
)
from headrace_gateway.lifecycle.outputs import ChoiceFinished, Delta, Screen, ScreenClose, Terminal

from .drive import Drive


def screened(n: int = 1, mode: Screening = Screening.FAIL_CLOSED) -> Drive:
    drive = Drive(n)
    drive.accept(mode)
    return drive


def test_text_waits_for_its_release() -> None:
    drive = screened()
    drive.feed(Tokens(1, 0, 1, "per", 1), Tokens(1, 0, 1, "simmon", 1))
    assert drive.of(Screen) == [Screen(1, 0, 0, "per", False), Screen(1, 0, 3, "simmon", False)]
    assert drive.of(Delta) == []
    drive.feed(ScreenReleased(1, 0, 5))
    assert [(delta.text, delta.num_tokens) for delta in drive.of(Delta)] == [("persi", 1)]


def test_a_choice_finishes_only_when_all_its_text_is_released() -> None:
    drive = screened()
    drive.feed(Tokens(1, 0, 1, "ab", 1), ChoiceFinal(1, 0, "stop", "", 2))
    assert drive.of(Screen)[-1] == Screen(1, 0, 2, "", True) and drive.of(ChoiceFinished) == []
    drive.feed(ScreenReleased(1, 0, 2))
    assert drive.stream == ["created", "ab", "finished:stop", "completed:stop"]
    assert drive.settlement.screening_verdict == "passed"


def test_a_block_ends_every_choice_with_what_was_released() -> None:  # B162
    drive = screened(2)
    drive.feed(Tokens(1, 0, 1, "ok persimmon", 1), Tokens(1, 1, 1, "x", 1), ScreenBlocked(1, 0, 3))
    drive.feed(ChoiceFinal(1, 0, "cancelled", "content_filter", 2), ChoiceFinal(1, 1, "cancelled", "content_filter", 1))
    assert drive.stream == ["created", "ok ", *["finished:content_filter"] * 2, "incomplete:content_filter"]
    counts = drive.settlement.counts
    assert (counts.num_output, counts.num_withheld) == (3, 3)
    assert drive.settlement.screening_verdict == "blocked"


@pytest.mark.parametrize("cut", range(9))
def test_no_split_of_a_blocked_word_reaches_the_client(cut: int) -> None:  # B163
    drive = screened()
    for text in ("persimmon"[:cut], "persimmon"[cut:]):
        drive.feed(Tokens(1, 0, 1, text, 1))
    drive.feed(ScreenBlocked(1, 0, 0))
    assert drive.text == ""


def test_a_redaction_replaces_text_and_drops_its_log_probabilities() -> None:
    drive = screened()
    drive.feed(Tokens(1, 0, 1, "mail ", 1, ("L0",)), Tokens(1, 0, 2, "a@b.c", 2, ("L1", "L2")))
    drive.feed(Tokens(1, 0, 1, "!", 1, ("L3",)))
    drive.feed(ScreenReleased(1, 0, 11, (Redaction(5, 10, "[email]"),)))
    (delta,) = drive.of(Delta)
    assert (delta.text, delta.num_tokens, delta.logprobs) == ("mail [email]!", 4, ("L0", "L3"))
    drive.feed(ChoiceFinal(1, 0, "stop", "", 5), ScreenReleased(1, 0, 11))
    assert drive.settlement.counts.num_withheld == 2 and drive.settlement.screening_verdict == "redacted"


def test_what_a_redaction_empties_makes_no_delta() -> None:
    drive = screened()
    drive.feed(Tokens(1, 0, 1, "secret", 1), ScreenReleased(1, 0, 6, (Redaction(0, 6, ""),)))
    assert drive.of(Delta) == []


def test_losing_policy_fails_closed() -> None:
    drive = screened()
    drive.feed(Tokens(1, 0, 1, "ab", 1), PolicyLost(), ChoiceFinal(1, 0, "cancelled", "", 1))
    assert drive.stream == ["created", "failed:policy_lost"]


def test_losing_policy_fails_open_where_rules_allow() -> None:
    drive = screened(mode=Screening.FAIL_OPEN)
    drive.feed(Tokens(1, 0, 1, "ab", 1), PolicyLost(), Tokens(1, 0, 1, "c", 1), ChoiceFinal(1, 0, "stop", "", 2))
    assert drive.stream == ["created", "ab", "c", "finished:stop", "completed:stop"]
    assert drive.settlement.screening_verdict == ""


def test_losing_policy_before_any_text_is_nothing_to_lose() -> None:
    drive = screened()
    assert drive.feed(PolicyLost()) == []


def test_an_attempt_that_moves_forgets_what_was_being_screened() -> None:
    drive = screened()
    drive.feed(Tokens(1, 0, 1, "ab", 1), AttemptLost(1))
    assert drive.of(ScreenClose) == [ScreenClose(1)]
    assert drive.feed(ScreenReleased(1, 0, 2)) == [] and drive.of(Terminal) == []


def test_screening_off_asks_nothing() -> None:
    drive = screened(mode=Screening.NONE)
    drive.feed(Tokens(1, 0, 1, "ab", 1), ChoiceFinal(1, 0, "stop", "", 1))
    assert drive.of(Screen) == [] and drive.settlement.screening_verdict == ""


@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=8), st.lists(st.integers(0, 40), max_size=8))
def test_any_releases_give_the_whole_text_once(chunks: list[str], releases: list[int]) -> None:
    drive = screened()
    whole = "".join(chunks)
    for number, chunk in enumerate(chunks):
        drive.feed(Tokens(1, 0, 1, chunk, 1, (number,)))
        if releases:
            drive.feed(ScreenReleased(1, 0, releases.pop()))
        assert whole.startswith(drive.text)
    drive.feed(ChoiceFinal(1, 0, "length", "", len(chunks)), ScreenReleased(1, 0, len(whole)))
    assert drive.text == whole
    assert [entry for delta in drive.of(Delta) for entry in delta.logprobs] == list(range(len(chunks)))
    assert sum(delta.num_tokens for delta in drive.of(Delta)) == len(chunks)
