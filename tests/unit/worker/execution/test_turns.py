"""Keys take turns, each keeps its order, and neither the room nor a share overflows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.execution.turns import Turns


def test_one_that_comes_with_many_does_not_go_before_one_that_comes_with_one() -> None:
    turns: Turns[str] = Turns(100)
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        turns.put(item[0], item)
    assert [turns.take() for _ in range(len(turns))] == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_a_share_is_full_before_the_room_is() -> None:
    turns: Turns[int] = Turns(4)
    for item in range(2):
        assert turns.refusal("a") is None
        turns.put("a", item)
    assert turns.refusal("a") == "share_exceeded"
    for item in range(2):
        assert turns.refusal("b") is None
        turns.put("b", item)
    assert turns.refusal("c") == "busy"


@given(st.lists(st.sampled_from("abc") | st.none(), max_size=60))
def test_nothing_is_lost_and_a_key_keeps_its_order(moves: list[str | None]) -> None:
    turns: Turns[tuple[str, int]] = Turns(1000)
    put: list[tuple[str, int]] = []
    taken: list[tuple[str, int]] = []
    for number, key in enumerate(moves):
        if key is not None:
            put.append((key, number))
            turns.put(key, (key, number))
        elif len(turns):
            taken.append(turns.take())
    taken += [turns.take() for _ in range(len(turns))]
    for key in "abc":
        assert [item for item in taken if item[0] == key] == [item for item in put if item[0] == key]
