"""A frame of tokens as the machine hears it, token by token or joined: a bad id never takes text along with it."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.v1 import worker_pb2 as pb
from headrace_gateway.attempt_reader import AttemptReader
from headrace_gateway.lifecycle import events
from headrace_gateway.prepared import Prepared
from headrace_gateway.text.detokenizer import Detokenizer
from headrace_gateway.text.stop_strings import StopStrings
from headrace_gateway.text.token_bytes import ScriptedBytes
from headrace_gateway.trace import AttemptTimes

NO_TOKEN = 9_999


class Hearer:
    """Keeps what it hears."""

    def __init__(self, *, joins_texts: bool) -> None:
        self.joins_texts = joins_texts
        self.heard: list[events.Event] = []

    def feed(self, event: events.Event) -> None:
        self.heard.append(event)

    def feed_all(self, happened: Iterable[events.Event]) -> None:
        self.heard += happened


def heard(frames: list[list[int]], *, joins_texts: bool, stops: StopStrings | None = None) -> list[events.Event]:
    """After `accepted`."""
    tokenizer = SimpleNamespace(detokenizer=lambda pieces, _: Detokenizer(ScriptedBytes(pieces)))
    model = SimpleNamespace(tokenizer=tokenizer)
    bounds = SimpleNamespace(n=1)
    prepared = SimpleNamespace(model=model, stops=stops, continues_text=False, bounds=bounds)
    hearer, times = Hearer(joins_texts=joins_texts), SimpleNamespace(number=1, accept=lambda *_: None)
    reader = AttemptReader(cast("AttemptTimes", times), cast("Prepared", prepared), hearer)
    reader.on_accepted(pb.Accepted())
    for frame in frames:
        reader.on_tokens(0, frame, None)
    return hearer.heard[1:]


def text_of(happened: list[events.Event]) -> str:
    return "".join(event.text for event in happened if isinstance(event, events.Tokens))


def count_of(happened: list[events.Event]) -> int:
    return sum(event.num_tokens for event in happened if isinstance(event, events.Tokens))


@pytest.mark.parametrize("joins_texts", [True, False])
@pytest.mark.parametrize("stops", [None, StopStrings(["zz"])])
@pytest.mark.parametrize("place", range(4))
def test_the_text_before_a_bad_id_goes_out_and_then_the_choice_fails(
    place: int, stops: StopStrings | None, joins_texts: bool
) -> None:
    frame: list[Any] = [*b"abc"]
    frame.insert(place, NO_TOKEN)
    happened = heard([[*b"xy"], frame], joins_texts=joins_texts, stops=stops)
    assert text_of(happened) == "xy" + "abc"[:place]
    assert [type(event) for event in happened].count(events.DecodeFailed) == 1
    assert isinstance(happened[-1], events.DecodeFailed)
    assert count_of(happened) >= 2 + place + 1


def test_joined_tokens_of_a_frame_are_one_text() -> None:
    (only,) = heard([[*b"hello"]], joins_texts=True)
    assert only == events.Tokens(1, 0, 5, "hello", 5)


def test_else_each_token_is_its_own() -> None:
    assert [event.text for event in heard([[*b"abc"]], joins_texts=False) if isinstance(event, events.Tokens)] == [
        *"abc"
    ]


def test_a_character_across_two_joined_frames_comes_out_once_and_whole() -> None:
    raw = "a😀b".encode()
    happened = heard([[*raw[:3]], [*raw[3:]]], joins_texts=True)
    assert (text_of(happened), count_of(happened)) == ("a😀b", len(raw))


def test_a_stop_inside_a_joined_frame_names_its_token() -> None:
    (only,) = heard([[*b"abENDcd"]], joins_texts=True, stops=StopStrings(["END"]))
    assert only == events.Tokens(1, 0, 7, "ab", 2, (), 5, "END")


def test_an_id_behind_a_stop_is_not_looked_at() -> None:
    (only,) = heard([[*b"aEND", NO_TOKEN]], joins_texts=True, stops=StopStrings(["END"]))
    assert only == events.Tokens(1, 0, 5, "a", 1, (), 4, "END")
