"""The page pool: states, order of eviction, quarantine."""

from __future__ import annotations

import time

import pytest

from headrace_worker.scheduling.blocks import PageIdentity, PagePool, PoolExhausted
from headrace_worker.scheduling.page_events import PageChange, PageEventLog, PageKey


def make_pool(num_pages: int) -> PagePool:
    return PagePool(num_pages, PageEventLog(epoch=1))


def identity(name: str) -> PageIdentity:
    return PageIdentity(PageKey(b"context", name.encode()), b"root", name.encode())


def cached(pool: PagePool, name: str) -> int:
    page = pool.allocate()
    pool.publish(page, identity(name))
    pool.release(page)
    return page


def test_pages_are_handed_out_once_and_never_the_null_page() -> None:
    pool = make_pool(5)
    assert sorted(pool.allocate() for _ in range(5)) == [1, 2, 3, 4, 5]
    with pytest.raises(PoolExhausted):
        pool.allocate()


def test_eviction_takes_the_least_recently_released_first() -> None:
    pool = make_pool(3)
    first, second, third = (cached(pool, name) for name in "abc")
    pool.share(first)
    pool.release(first)
    assert [pool.allocate() for _ in range(3)] == [second, third, first]


def test_free_pages_go_before_cached_ones() -> None:
    pool = make_pool(2)
    kept = cached(pool, "a")
    assert pool.allocate() != kept
    assert pool.find(identity("a")) == kept


def test_a_referenced_page_is_never_evicted() -> None:
    pool = make_pool(2)
    page = cached(pool, "a")
    pool.share(page)
    pool.allocate()
    with pytest.raises(PoolExhausted):
        pool.allocate()


def test_a_key_with_other_tokens_is_no_hit() -> None:
    """What a collision of the hash would look like: same key, other content."""
    pool = make_pool(1)
    cached(pool, "a")
    assert pool.find(identity("a")._replace(tokens=b"other")) is None
    assert pool.find(identity("a")._replace(parent=b"other")) is None
    assert pool.find(identity("a")) is not None


def test_the_second_page_of_a_key_is_not_published() -> None:
    pool = make_pool(2)
    first, second = pool.allocate(), pool.allocate()
    assert pool.publish(first, identity("a"))
    assert not pool.publish(second, identity("a"))
    pool.release(second)
    assert (pool.num_free, pool.num_cached, pool.num_held) == (1, 0, 1)


def test_a_page_in_transfer_is_quarantined_until_the_last_transfer_ends() -> None:
    pool = make_pool(1)
    page = pool.allocate()
    pool.begin_transfer(page)
    pool.begin_transfer(page)
    pool.release(page)
    assert (pool.num_quarantined, pool.num_available) == (1, 0)
    with pytest.raises(PoolExhausted):
        pool.allocate()
    pool.end_transfer(page)
    assert pool.num_quarantined == 1
    pool.end_transfer(page)
    assert (pool.num_quarantined, pool.allocate()) == (0, page)


def test_a_published_page_in_quarantine_can_be_hit_and_returns_there() -> None:
    pool = make_pool(1)
    page = pool.allocate()
    pool.publish(page, identity("a"))
    pool.begin_transfer(page)
    pool.release(page)
    pool.share(page)
    assert pool.count_states() == (0, 0, 1, 0)
    pool.release(page)
    assert pool.count_states() == (0, 0, 0, 1)
    pool.end_transfer(page)
    assert pool.count_states() == (0, 1, 0, 0)


def test_events_tell_what_is_stored_evicted_and_cleared() -> None:
    pool = make_pool(1)
    cached(pool, "a")
    pool.release(pool.allocate())
    batch = pool.events.drain()
    assert [(event.seq, event.change, event.key) for event in batch.events] == [
        (0, PageChange.STORED, identity("a").key),
        (1, PageChange.EVICTED, identity("a").key),
    ]
    cached(pool, "b")
    pool.clear(epoch=2)
    batch = pool.events.drain()
    assert (batch.epoch, batch.lost) == (2, False)
    assert [(event.seq, event.change) for event in batch.events] == [(0, PageChange.CLEARED)]


def test_clearing_keeps_what_is_held_and_frees_what_is_cached() -> None:
    pool = make_pool(3)
    held = pool.allocate()
    pool.publish(held, identity("a"))
    cached(pool, "b")
    pool.clear(epoch=2)
    assert pool.find(identity("a")) is None
    assert pool.count_states() == (2, 0, 1, 0)
    pool.release(held)
    assert pool.num_free == 3


def test_a_reader_that_lost_events_is_told() -> None:
    log = PageEventLog(epoch=1, max_undrained=2)
    for _ in range(3):
        log.add(PageChange.STORED, PageKey(b"", b""))
    batch = log.drain()
    assert batch.lost
    assert [event.seq for event in batch.events] == [1, 2]
    assert not log.drain().lost


def test_operations_take_the_same_time_in_a_large_pool() -> None:
    """O(1): a pool a hundred times larger, full of cached pages, is not ten times slower."""

    def seconds(num_pages: int) -> float:
        pool = make_pool(num_pages)
        for index in range(num_pages):
            cached(pool, str(index))
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(500):
                pool.release(pool.allocate())
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(100_000) < 10 * seconds(1_000)
