"""In a large fleet a decision looks at some replicas: those with the prompt, the session's own, and a draw."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace_router.shortlist import MOST_VIEWED, NUM_DRAWN, NUM_HOMES, NUM_WARM, shortlist


@given(st.integers(0, MOST_VIEWED), st.text())
def test_in_a_small_fleet_everyone_is_looked_at(num_replicas: int, session: str) -> None:
    assert shortlist(num_replicas, {}, session, Random(1)) == list(range(num_replicas))


@given(st.integers(MOST_VIEWED + 1, 2000), st.dictionaries(st.integers(0, 64), st.integers(1, 9)), st.integers())
def test_in_a_large_one_a_bounded_number_and_none_twice(num_replicas: int, hits: dict[int, int], seed: int) -> None:
    places = shortlist(num_replicas, hits, "s", Random(seed))
    assert len(places) == len(set(places)) <= NUM_WARM + NUM_HOMES + NUM_DRAWN
    assert all(0 <= place < num_replicas for place in places)
    warmest = sorted(hits.values(), reverse=True)[:NUM_WARM]
    assert sorted((hits[place] for place in places if place in hits), reverse=True)[: len(warmest)] == warmest


def test_every_router_looks_at_the_same_few_for_a_session() -> None:
    one, other = (set(shortlist(1000, {}, "s-1", Random(seed))) for seed in (1, 2))
    homes = set(Random("s-1").choices(range(1000), k=NUM_HOMES))
    assert homes <= one & other


def test_every_replica_is_looked_at_as_often() -> None:
    draws, num_looks = Random(3), [0] * 200
    for _ in range(2000):
        for place in shortlist(200, {}, "", draws):
            num_looks[place] += 1
    mean = sum(num_looks) / 200
    assert min(num_looks) > 0.75 * mean
    assert max(num_looks) < 1.25 * mean
