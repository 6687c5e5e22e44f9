"""The Mooncake conversation trace: the LRU golden table to the block, and what the router's choice keeps of it."""

import pytest

from benchmarks.routing_trace import LruCache, Row, Scored, load_trace, replay_fleet, replay_lru, round_robin

GOLDEN = {1_000: (12_847, 4.54), 3_000: (18_850, 6.66), 10_000: (61_046, 21.57)}
GOLDEN_SLOW = {30_000: (93_978, 33.22), 50_000: (102_290, 36.15), None: (105_710, 37.36)}


@pytest.fixture(scope="module")
def trace() -> list[Row]:
    return load_trace()


def test_the_trace_is_whole(trace: list[Row]) -> None:
    assert len(trace) == 12_031
    assert sum(len(row.blocks) for row in trace) == 288_500
    assert len({block for row in trace for block in row.blocks}) == 182_790
    assert all(len(row.blocks) == -(-row.num_input // 512) for row in trace)


def golden(trace: list[Row], capacity: int | None, num_blocks: int, percent: float) -> None:
    hits = replay_lru(trace, capacity)
    assert hits.num_blocks == num_blocks
    assert hits.share * 100 == pytest.approx(percent, abs=0.005)


@pytest.mark.parametrize("capacity", GOLDEN)
def test_the_golden_table_to_the_block(trace: list[Row], capacity: int) -> None:
    golden(trace, capacity, *GOLDEN[capacity])


@pytest.mark.slow
@pytest.mark.parametrize("capacity", GOLDEN_SLOW)
def test_the_rest_of_the_golden_table(trace: list[Row], capacity: int | None) -> None:
    golden(trace, capacity, *GOLDEN_SLOW[capacity])


def test_a_request_makes_its_head_the_newest() -> None:
    cache = LruCache(3)
    cache.touch((1, 2, 3, 4))
    assert cache.run((1, 2, 3, 4)) == 3


def test_the_router_keeps_conversations_together_and_the_load_even(trace: list[Row]) -> None:
    """The start of the trace on 16 replicas: nearly all of what one cache of all their blocks hits."""
    rows = trace[:2000]
    shared = replay_lru(rows, 16 * 1000).num_tokens
    ours, blind = (replay_fleet(rows, 16, 1000, strategy) for strategy in (Scored(), round_robin))
    assert ours.hits.num_tokens >= 0.9 * shared
    assert blind.hits.num_tokens < 0.3 * shared
    assert max(ours.imbalance, ours.computed_imbalance) <= 1.3


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [500, 1000])
def test_64_replicas_keep_nine_tenths_of_one_shared_cache(trace: list[Row], capacity: int) -> None:
    shared = replay_lru(trace, 64 * capacity)
    ours = replay_fleet(trace, 64, capacity, Scored())
    assert ours.hits.num_tokens >= 0.9 * shared.num_tokens
    assert max(ours.imbalance, ours.computed_imbalance) <= 1.3
