"""Pages of a prompt, leading runs, and the mirror of a replica's cache: duplicates, delays, gaps, lists."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import worker_pb2
from headrace_router.prefix_index import Change, GapError, Mirror, leading_runs, page_values, record_of


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def stored(*numbers: int) -> worker_pb2.BlockEvent:
    return worker_pb2.BlockEvent(stored=b"".join(map(key, numbers)))


def evicted(*numbers: int) -> worker_pb2.BlockEvent:
    return worker_pb2.BlockEvent(evicted=b"".join(map(key, numbers)))


def changes(first_seq: int, *events: worker_pb2.BlockEvent, **flags: Any) -> worker_pb2.BlockEvents:
    return worker_pb2.BlockEvents(first_seq=first_seq, events=events, **flags)


def listing(next_seq: int, *numbers: int) -> worker_pb2.BlockEvents:
    return changes(next_seq, stored(*numbers), relist_begin=True, relist_end=True)


def listed(*numbers: int, next_seq: int = 0) -> Mirror:
    mirror = Mirror()
    mirror.take("e1", listing(next_seq, *numbers))
    return mirror


def numbers_of(keys: Any) -> set[int]:
    return {int.from_bytes(each, "big") for each in keys}


def test_the_key_of_a_page_is_the_value_of_its_last_block() -> None:
    chain = b"".join(key(i) for i in range(7))
    assert page_values(chain, 16) == chain
    assert page_values(chain, 48) == key(2) + key(5)
    assert page_values(chain, 256) == b""


def test_a_record_names_replica_and_epoch() -> None:
    one, restarted, other = record_of("w-1", "e1"), record_of("w-1", "e2"), record_of("w-2", "e1")
    assert one[:4] == restarted[:4] != other[:4]
    assert len({one, restarted, other}) == 3


def test_a_holder_that_lacks_a_page_hits_nothing_behind_it() -> None:
    a, b, c = b"a" * 8, b"b" * 8, b"c" * 8
    found: list[int | bytes] = [0, a + b + c, 2, a + c, 5, a + b, 9]
    assert leading_runs(found) == {a: 9, b: 2, c: 5}
    assert leading_runs([0]) == leading_runs([]) == {}
    assert leading_runs([0, a, 3, b, 4]) == {a: 3}


def test_a_list_replaces_what_was_known() -> None:
    mirror = listed(1, 2, 3)
    change = mirror.take("e2", listing(7, 3, 4))
    assert (numbers_of(change.added), numbers_of(change.removed)) == ({3, 4}, {1, 2})
    assert mirror.last_seen == ("e2", 6)


def test_a_list_in_parts_counts_when_it_is_whole() -> None:
    mirror = Mirror()
    assert mirror.take("e1", changes(5, stored(1), relist_begin=True)) == Change()
    assert mirror.last_seen == ("", 0)
    assert numbers_of(mirror.take("e1", changes(5, stored(2), relist_end=True)).added) == {1, 2}
    assert mirror.last_seen == ("e1", 4)


def test_what_is_stored_and_evicted_at_once_is_not_there() -> None:
    change = listed(1).take("e1", changes(0, stored(2), evicted(2), evicted(1), stored(1)))
    assert (numbers_of(change.added), numbers_of(change.removed)) == ({1}, {2})


def test_a_cleared_cache_holds_nothing() -> None:
    mirror = listed(1, 2)
    change = mirror.take("e1", changes(0, worker_pb2.BlockEvent(cleared=True), stored(2)))
    assert (numbers_of(change.added), numbers_of(change.removed)) == ({2}, {1})


@pytest.mark.parametrize(("epoch", "first_seq"), [("e1", 1), ("e2", 0)])
def test_missing_changes_are_a_gap(epoch: str, first_seq: int) -> None:
    with pytest.raises(GapError):
        listed(1).take(epoch, changes(first_seq, stored(2)))


def test_a_list_that_another_epoch_interrupts_is_a_gap() -> None:
    mirror = Mirror()
    mirror.take("e1", changes(5, stored(1), relist_begin=True))
    with pytest.raises(GapError):
        mirror.take("e2", changes(5, stored(2), relist_end=True))


def test_distrust_asks_for_the_list_and_keeps_what_is_known() -> None:
    mirror = listed(1, next_seq=9)
    mirror.distrust()
    assert (mirror.last_seen, numbers_of(mirror.keys)) == (("", 0), {1})


def test_one_replica_cannot_fill_the_index() -> None:
    mirror = Mirror(max_keys=2)
    mirror.take("e1", listing(0, 1, 2, 3))
    assert len(mirror.keys) == 2
    assert mirror.take("e1", changes(0, stored(9))) == Change()


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=20),
)
def test_duplicates_delays_and_losses_never_leave_a_wrong_mirror(
    history: list[tuple[bool, int]], deliveries: list[tuple[int, int]]
) -> None:
    """Whatever part of the history arrives in whatever order: at each point the mirror is what the replica had then."""
    events = [stored(n) if is_stored else evicted(n) for is_stored, n in history]
    truth: list[set[int]] = [set()]
    for is_stored, n in history:
        truth.append(truth[-1] | {n} if is_stored else truth[-1] - {n})
    mirror, index = listed(), set[int]()
    for first, length in deliveries:
        try:
            change = mirror.take("e1", changes(first, *events[first : first + length]))
        except GapError:
            assert first > mirror.next_seq
            continue
        index = (index - numbers_of(change.removed)) | numbers_of(change.added)
        assert numbers_of(mirror.keys) == index == truth[mirror.next_seq]
