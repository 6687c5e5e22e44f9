"""Stop strings: never leaked, never over-truncated, nothing held that cannot become one."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from headrace_gateway.text.stop_strings import StopFilter, StopStrings

STOPS = st.lists(st.text(alphabet="ab\nU😀", min_size=1, max_size=5), min_size=1, max_size=16)


def shown(stops: list[str], chunks: list[str]) -> list[str]:
    """Deltas of a stream of chunks that then ends; empty ones left out."""
    stop_filter = StopFilter(StopStrings(stops))
    return [text for text in [*map(stop_filter.feed, chunks), stop_filter.finish()] if text]


def one_shot(stops: list[str], text: str) -> str:
    """The text before the stop that is completed first; of those, the longest."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


def longest_hold(stops: list[str], text: str) -> int:
    """Length of the longest suffix that is a proper prefix of some stop."""
    return max((n for stop in stops for n in range(len(stop)) if n == 0 or text.endswith(stop[:n])), default=0)


def test_a_stop_over_many_tokens_never_leaks() -> None:  # B12
    assert shown(["\n\nUser:"], ["Hi", "\n", "\n", "Us", "er", ":"]) == ["Hi"]


def test_a_disproved_stop_comes_out_whole() -> None:  # B12
    assert shown(["\n\nUser:"], ["Hi", "\n", "\n", "Us", "a"]) == ["Hi", "\n\nUsa"]


def test_text_that_cannot_be_a_stop_is_not_held() -> None:  # B15
    stop_filter = StopFilter(StopStrings(["ZZZZZZZZ"]))
    assert [stop_filter.feed(text) for text in ("I ", "am ", "ok")] == ["I ", "am ", "ok"]


def test_held_text_is_released_when_disproved_and_at_the_end() -> None:  # B20
    assert "".join(shown(["</think>"], ["a", "</", "answer"])) == "a</answer"
    assert "".join(shown(["</think>"], ["a", "</"])) == "a</"


def test_a_stop_inside_a_chunk_hides_what_follows() -> None:
    assert shown(["b"], ["aXbc", "more"]) == ["aX"]


def test_a_shorter_stop_inside_a_longer_one_wins_when_it_is_complete() -> None:
    assert shown(["abcd", "bc"], ["abcd"]) == ["a"]


def test_of_stops_completed_together_the_longest_is_cut() -> None:
    assert shown(["bc", "abc"], ["x", "a", "b", "c"]) == ["x"]


def test_the_stop_that_matched_is_known() -> None:
    stop_filter = StopFilter(StopStrings(["bc", "abc", "z"]))
    assert stop_filter.feed("xa") == "x" and stop_filter.matched == ""
    assert stop_filter.feed("b") + stop_filter.feed("cz") == ""
    assert stop_filter.matched == "abc"


@example(["aab"], "aaab", [1, 2, 3])
@given(STOPS, st.text(alphabet="ab\nU😀", max_size=30), st.lists(st.integers(0, 30), max_size=10))
def test_any_chunking_gives_the_one_shot_text(stops: list[str], text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[start:end] for start, end in pairwise(edges)]
    assert "".join(shown(stops, chunks)) == one_shot(stops, text)


@given(STOPS, st.text(alphabet="ab\nU😀", max_size=30))
def test_exactly_the_longest_possible_beginning_of_a_stop_is_held(stops: list[str], text: str) -> None:
    stop_filter = StopFilter(StopStrings(stops))
    read = released = ""
    for character in text:
        read += character
        released += stop_filter.feed(character)
        if stop_filter.stopped:
            assert any(read.endswith(stop) for stop in stops)
            return
        assert read.startswith(released)
        assert len(read) - len(released) == longest_hold(stops, read)


def test_sixteen_adversarial_stops_stay_linear() -> None:
    """A naive search would compare a million characters with the whole stop each; the automaton reads each once."""
    stops = ["a" * length + "b" for length in range(1000, 1016)]
    stop_filter = StopFilter(StopStrings(stops))
    began = time.process_time()
    for _ in range(200):
        stop_filter.feed("a" * 1000)
    assert time.process_time() - began < 5.0
    assert stop_filter.feed("b") == "" and stop_filter.stopped
