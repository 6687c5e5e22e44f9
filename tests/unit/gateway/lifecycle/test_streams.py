"""What a client sees of one response, token by token: the scenarios of the field with their values."""

from __future__ import annotations

import pytest

from headrace_gateway.lifecycle.events import ChoiceFinal, DecodeFailed, Tokens
from headrace_gateway.lifecycle.outputs import Cancel, ChoiceFinished, Delta

from .drive import Drive, PaperWorker


def run(script: list[str | bytes | int], n: int = 1, stops: tuple[str, ...] = (), **options: int) -> Drive:
    drive = Drive(n)
    drive.accept()
    PaperWorker(drive, script, stops, **options).run()  # type: ignore[arg-type]
    return drive


def test_an_engine_error_after_text_is_one_failed_terminal() -> None:  # B01
    drive = Drive()
    drive.accept()
    drive.feed(Tokens(1, 0, 1, "Hel", 1), Tokens(1, 0, 1, "lo", 1), ChoiceFinal(1, 0, "failed", "engine_error", 2))
    assert drive.stream == ["created", "Hel", "lo", "failed:engine_error"]
    assert drive.terminal.usage.num_output_tokens == 2
    assert drive.of(ChoiceFinished) == []


def test_text_never_shares_an_event_with_the_finish_reason() -> None:  # B03
    drive = run(["a", "b", "c", "d", "e", "f"], max_output=5)
    assert drive.stream == ["created", "a", "b", "c", "d", "e", "finished:length", "incomplete:length"]
    assert drive.terminal.usage.num_output_tokens == 5


@pytest.mark.parametrize("logprobs", [False, True])
def test_log_probabilities_do_not_change_the_ending(logprobs: bool) -> None:  # B05
    drive = run(["a", "b", 257], logprobs=logprobs)
    assert drive.stream == ["created", "a", "b", "finished:stop", "completed:stop"]
    assert sum(len(delta.logprobs) for delta in drive.of(Delta)) == (2 if logprobs else 0)
    assert drive.terminal.usage.num_output_tokens == 3


def test_usage_counts_the_prompt_once_and_every_choice() -> None:  # B07
    usage = run(["h", "i", 257], n=2).terminal.usage
    assert (usage.num_prompt_tokens, usage.num_output_tokens, usage.num_total_tokens) == (22, 6, 28)


def test_usage_is_not_a_sum_of_running_totals() -> None:  # B07: 19503 = 1 + 2 + ... + 197
    drive = run(["x"] * 300, max_output=197)
    assert drive.terminal.usage.num_output_tokens == 197
    assert sum(delta.num_tokens for delta in drive.of(Delta)) == 197


def test_an_emoji_of_four_tokens_is_one_delta() -> None:  # B09
    drive = run([0xF0, 0x9F, 0x98, 0x80, 0x21], max_output=5)
    assert drive.stream == ["created", "\U0001f600", "!", "finished:length", "incomplete:length"]
    assert drive.terminal.usage.num_output_tokens == 5


def test_a_decoder_fault_fails_this_response_and_frees_it() -> None:  # B11
    drive = Drive()
    drive.accept()
    drive.feed(Tokens(1, 0, 2, "ab", 2), DecodeFailed(1, 0, "token 7"), ChoiceFinal(1, 0, "cancelled", "", 2))
    assert drive.stream == ["created", "ab", "failed:decode_error"]
    assert drive.of(Cancel) == [Cancel(1, -1, "superseded", None)]


def test_a_stop_string_never_leaks() -> None:  # B12
    drive = run(["Hi", "\n", "\n", "Us", "er", ":", "x"], stops=("\n\nUser:",))
    assert drive.stream == ["created", "Hi", "finished:stop", "completed:stop"]
    assert drive.terminal.usage.num_output_tokens == 6


def test_a_disproved_stop_string_is_text() -> None:  # B12
    assert run(["Hi", "\n", "\n", "Us", "a"], stops=("\n\nUser:",)).stream[1:3] == ["Hi", "\n\nUsa"]


def test_a_stop_that_never_begins_delays_nothing() -> None:  # B15
    drive = run(["I ", "am ", "ok"], stops=("ZZZZZZZZ",))
    assert [delta.text for delta in drive.of(Delta)] == ["I ", "am ", "ok"]


def test_the_turn_marker_ends_and_is_not_seen() -> None:  # B18
    drive = run(["o", "k", 259, 10, 258, "u", "s", "e", "r"])
    assert drive.stream == ["created", "o", "k", "finished:stop", "completed:stop"]
    assert drive.terminal.usage.num_output_tokens == 3


def test_text_held_for_a_stop_comes_out_at_the_end() -> None:  # B20
    assert run(["a", "</", 257], stops=("</think>",)).text == "a</"
    assert run(["a", "</", "answer"], stops=("</think>",)).text == "a</answer"


def test_no_delta_is_empty_and_the_first_event_is_created() -> None:  # B22
    drive = run([0xF0, 0x9F, 0x98, 0x80, "a", 258, "b", b"\xff"], n=2, stops=("bX",))
    assert all(delta.text for delta in drive.of(Delta))
    assert drive.stream[0] == "created" and drive.stream.count("created") == 1


def test_one_choice_ends_by_length_and_the_response_is_incomplete() -> None:
    drive = Drive(2)
    drive.accept()
    drive.feed(ChoiceFinal(1, 0, "stop", "", 4), ChoiceFinal(1, 1, "length", "", 9))
    assert [choice.reason for choice in drive.of(ChoiceFinished)] == ["stop", "length"]
    assert (drive.terminal.kind, drive.terminal.reason) == ("incomplete", "length")


def test_a_failure_of_one_choice_ends_them_all() -> None:
    drive = Drive(3)
    drive.accept()
    drive.feed(Tokens(1, 1, 1, "a", 1), ChoiceFinal(1, 0, "stop", "", 4))
    drive.feed(ChoiceFinal(1, 2, "failed", "kv_exhausted", 9))
    assert drive.of(Cancel) == [Cancel(1, 1, "superseded", None)]
    drive.feed(ChoiceFinal(1, 1, "cancelled", "superseded", 2))
    assert drive.stream[-1] == "failed:kv_exhausted"


def test_a_stop_tells_the_worker_how_many_tokens_count() -> None:
    drive = Drive(2)
    drive.accept()
    drive.feed(Tokens(1, 1, 3, "a", 1, stop_at=2))
    assert drive.of(Cancel) == [Cancel(1, 1, "stop", 2)]
    assert drive.of(ChoiceFinished) == [ChoiceFinished(2, 1, "stop", 2)]


def test_a_stop_string_ends_the_client_before_the_worker_heard_of_it() -> None:
    """The text and its finish go out at once; only the terminal waits for the count of the overshoot."""
    drive = Drive()
    drive.accept()
    drive.feed(Tokens(1, 0, 1, "Hi", 1, stop_at=1))
    assert drive.stream == ["created", "Hi", "finished:stop"]
    drive.feed(Tokens(1, 0, 1, "", 0), ChoiceFinal(1, 0, "cancelled", "stop", 3, num_late=1))
    assert drive.stream[-1] == "completed:stop"
    counts = drive.settlement.counts
    assert (counts.num_output, counts.num_stop_overshoot, counts.num_late_step) == (1, 1, 1)
