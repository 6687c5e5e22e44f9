"""The autoscaler: its invariants over any course of events, and the scenarios that others got wrong."""

import math
import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_controlplane.autoscale import Decision, Demand, Picture, ScalePolicy, ScaleState, Seen, decide


def ready(count: int) -> list[Seen]:
    return [Seen("ready", 1000.0)] * count


@dataclass
class Pool:
    """Replicas that start within `start_up_s` and leave at once: what a launcher would make of the decisions."""

    policy: ScalePolicy
    start_up_s: float = 60.0
    capacity: float = 10.0
    state: ScaleState = field(default_factory=lambda: ScaleState(0))
    now_s: float = 0.0
    started: list[float] = field(default_factory=list)
    num_starts: int = 0
    num_stops: int = 0
    num_killed_loading: int = 0

    def seen(self) -> list[Seen]:
        ages = [self.now_s - at for at in self.started]
        return [Seen("ready" if age >= self.start_up_s else "starting", age) for age in ages]

    def tick(self, load: float | None, held: int = 0, forecast: float | None = None, step_s: float = 1.0) -> Decision:
        demand = None if load is None else Demand(self.now_s, load, held)
        picture = Picture(self.now_s, demand, self.seen(), self.start_up_s, self.capacity, forecast)
        decision = decide(self.policy, picture, self.state)
        self.state = decision.state
        while len(self.started) < decision.desired:
            self.started.append(self.now_s)
            self.num_starts += 1
        while len(self.started) > decision.desired:
            # Reconcile lets those go first that do not serve yet.
            latest = self.started.pop()
            self.num_killed_loading += self.now_s - latest < self.start_up_s
            self.num_stops += 1
        self.now_s += step_s
        return decision


policies = st.builds(
    lambda low, more, reserve, down, most_starting, most_down: ScalePolicy(
        low, low + more, reserve, 0.8, down, 2.0, most_starting, most_down
    ),
    st.integers(0, 5),
    st.integers(0, 40),
    st.integers(0, 5),
    st.floats(0, 600),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 5),
)
loads = st.one_of(st.none(), st.floats(0, 500))


@given(policies, st.lists(st.tuples(loads, st.integers(0, 3), st.none() | st.floats(0, 600)), max_size=60))
def test_the_number_stays_within_its_bounds(
    policy: ScalePolicy, course: list[tuple[float | None, int, float | None]]
) -> None:
    pool = Pool(policy)
    for load, held, forecast in course:
        assert policy.min <= pool.tick(load, held, forecast, step_s=20.0).desired <= policy.max


@given(policies, st.floats(0, 500), st.integers(0, 45), st.none() | st.floats(0, 600))
def test_constant_load_never_flaps(policy: ScalePolicy, load: float, start: int, forecast: float | None) -> None:
    pool = Pool(policy, state=ScaleState(start))
    course = [pool.tick(load, forecast=forecast, step_s=10.0).desired for _ in range(400)]
    rises = sum(later > earlier for earlier, later in pairwise(course))
    falls = sum(later < earlier for earlier, later in pairwise(course))
    assert rises == 0 or falls == 0, "it went up and down under one load"


@given(policies, st.lists(st.floats(0, 500), max_size=20), st.integers(1, 200))
def test_missing_and_stale_data_change_nothing(policy: ScalePolicy, before: list[float], num_blind: int) -> None:
    pool = Pool(policy)
    for load in before:
        pool.tick(load, step_s=30.0)
    held = pool.tick(None)
    assert held.alarm and held.why == "missing"
    for _ in range(num_blind):
        assert pool.tick(None, step_s=30.0).desired == held.desired
    stale = decide(policy, Picture(1000.0, Demand(994.9, 0.0), ready(3), 60, 10.0), ScaleState(held.desired))
    assert (stale.why, stale.desired) == ("stale", held.desired)


@given(policies, st.floats(0, 400), st.floats(0, 100), st.integers(0, 45))
def test_more_load_never_asks_for_fewer(policy: ScalePolicy, load: float, more: float, desired: int) -> None:
    def asked(amount: float) -> int:
        picture = Picture(0.0, Demand(0.0, amount), ready(desired), 60, 10.0)
        return decide(policy, picture, ScaleState(desired)).desired

    assert asked(load + more) >= asked(load)


@given(policies, loads, st.integers(0, 45))
def test_a_dry_run_is_the_same_decision(policy: ScalePolicy, load: float | None, desired: int) -> None:
    demand = None if load is None else Demand(5.0, load)
    picture, state = Picture(5.0, demand, ready(desired), 60, 10.0), ScaleState(desired)
    first = decide(policy, picture, state)
    assert first == decide(policy, picture, state)
    assert first.detail


def test_the_target_is_the_quantile_over_the_capacity_and_the_reserve() -> None:
    policy = ScalePolicy(1, 100, warm_reserve=3, utilization=0.8)
    picture = Picture(0.0, Demand(0.0, 120.0), ready(16), 120.0, 10.0, forecast=200.0)
    decision = decide(policy, picture, ScaleState(16))
    assert (decision.desired, decision.why) == (math.ceil(200 / 8) + 3, "forecast")
    assert "200 forecast for 120 s from now needs 25" in decision.detail


def test_the_reserve_is_spent_and_refilled() -> None:
    pool = Pool(ScalePolicy(0, 50, warm_reserve=4, utilization=1.0), start_up_s=30)
    for _ in range(40):
        settled = pool.tick(100.0)
    assert (settled.desired, settled.num_reserve_left) == (14, 4)
    spent = pool.tick(140.0)
    assert (spent.desired, spent.num_reserve_left) == (18, 0)
    for _ in range(40):
        refilled = pool.tick(140.0)
    assert refilled.num_reserve_left == 4


def test_starts_at_once_are_bounded() -> None:
    policy = ScalePolicy(1, 100, utilization=1.0, max_starting=4)
    picture = Picture(0.0, Demand(0.0, 500.0), ready(10), 60, 10.0)
    assert decide(policy, picture, ScaleState(10)).desired == 14


def test_a_queue_that_ages_asks_for_one_more_and_waits_for_it() -> None:
    policy = ScalePolicy(1, 10, utilization=1.0, queue_age_s=2.0)
    old = Demand(0.0, 20.0, oldest_wait_s=5.0)
    assert decide(policy, Picture(0.0, old, ready(2), 60, 10.0), ScaleState(2)).desired == 3
    starting = [*ready(2), Seen("starting", 5.0)]
    assert decide(policy, Picture(0.0, old, starting, 60, 10.0), ScaleState(3)).desired == 3


def test_b151_zero_traffic_goes_down_to_min_and_failing_scrapes_hold() -> None:
    pool = Pool(ScalePolicy(1, 10, utilization=1.0, down_after_s=300), start_up_s=10, state=ScaleState(7))
    for _ in range(100):
        pool.tick(70.0)
    blind = [pool.tick(None) for _ in range(1000)]
    assert {(each.desired, each.alarm) for each in blind} == {(7, True)}
    idle = [pool.tick(0.0).desired for _ in range(400)]
    assert idle[:300] == [7] * 300
    assert idle[301] == 1


def test_b152_one_replica_that_loads_neither_blocks_nor_counts() -> None:
    policy = ScalePolicy(1, 10, utilization=1.0, down_after_s=60)
    # Five serve, the sixth has been loading for far longer than a start takes.
    replicas = [*ready(5), Seen("starting", 500.0)]
    state = ScaleState(6)
    for second in range(62):
        picture = Picture(float(second), Demand(float(second), 20.0), replicas, 60, 10.0)
        decision = decide(policy, picture, state)
        state = decision.state
    assert decision.desired == 2


@pytest.mark.parametrize("down_after_s", [10.0, 60.0, 300.0])
def test_b153_a_burst_shorter_than_a_start_rises_once_and_falls_once(down_after_s: float) -> None:
    pool = Pool(ScalePolicy(1, 100, utilization=1.0, down_after_s=down_after_s), start_up_s=90)
    for _ in range(1000):
        base = pool.tick(120.0).desired
    pool.num_starts = pool.num_stops = 0
    course = [pool.tick(360.0).desired for _ in range(60)] + [pool.tick(120.0).desired for _ in range(1200)]
    steps = [later - earlier for earlier, later in zip([base, *course], course, strict=False) if later != earlier]
    peak = max(course)
    assert steps == [peak - base, base - peak]
    assert (pool.num_starts, pool.num_stops) == (peak - base, peak - base)
    assert pool.num_killed_loading == 0


def test_b155_the_idle_time_of_a_slow_loader_starts_when_it_is_ready() -> None:
    pool = Pool(ScalePolicy(0, 1, utilization=1.0, down_after_s=120), start_up_s=180)
    pool.tick(0.0, held=1)
    course = [pool.tick(0.0).desired for _ in range(400)]
    assert course[:298] == [1] * 298, "it became ready after 180 s and was given its 120 s"
    assert course[-1] == 0
    assert pool.num_killed_loading == 0


@settings(max_examples=10)
@given(st.integers(20, 50), st.integers(0, 10_000))
def test_noise_within_what_utilization_leaves_room_for_starts_nothing(size: int, seed: int) -> None:
    """Readings are means of ten seconds; their deviation is 3 % of the load."""
    load, rng = size * 8.0 - 4.0, random.Random(seed)
    pool = Pool(ScalePolicy(1, 1000, utilization=0.8), state=ScaleState(size))
    noise = [rng.gauss(0, 0.03 * load * math.sqrt(10)) for _ in range(310)]
    course = [pool.tick(load + sum(noise[at : at + 10]) / 10).desired for at in range(300)]
    assert size <= min(course) and max(course) <= 1.1 * size


def test_more_than_noise_counts_at_once() -> None:
    pool = Pool(ScalePolicy(1, 100, utilization=0.8), start_up_s=10)
    for _ in range(60):
        pool.tick(80.0)
    assert pool.tick(90.0).desired == 11, "a tenth more is followed over a minute"
    assert pool.tick(120.0).desired == 15


@settings(max_examples=30)
@given(st.lists(st.integers(0, 20), min_size=2, max_size=12), st.integers(1, 4))
def test_it_keeps_the_most_that_was_needed_of_late_and_lets_the_rest_go(levels: list[int], num_kept: int) -> None:
    """Levels of ten minutes; the down time is so many of them."""
    pool = Pool(ScalePolicy(0, 60, utilization=1.0, down_after_s=600.0 * num_kept), start_up_s=5)
    for index, level in enumerate(levels):
        for _ in range(60):
            desired = pool.tick(10.0 * level - 5.0 * (level > 0), step_s=10.0).desired
        before = levels[max(0, index - num_kept + 1) : index + 1]
        # The last step down waits for its stride.
        allowed = max(levels[max(0, index - num_kept) : index + 1])
        assert max(before) <= desired <= max(allowed, 1) or index < num_kept


def test_what_is_left_to_go_waits_for_its_own_time() -> None:
    pool = Pool(ScalePolicy(0, 20, utilization=1.0, down_after_s=60, max_down=2), start_up_s=5, state=ScaleState(10))
    for _ in range(10):
        pool.tick(100.0)
    course = [pool.tick(0.0).desired for _ in range(400)]
    falls = [(at + 1, later - earlier) for at, (earlier, later) in enumerate(pairwise(course)) if later != earlier]
    assert falls == [(60 * (1 + step), -2) for step in range(5)]


def test_b156_what_is_held_starts_the_first_replica() -> None:
    decision = decide(ScalePolicy(0, 3), Picture(0.0, Demand(0.0, 0.0, num_held=1), [], 60), ScaleState(0))
    assert (decision.desired, decision.why) == (1, "held")


@pytest.mark.parametrize(("load", "why"), [(0.0, "steady"), (5.0, "unmeasured")])
def test_without_a_measured_capacity_only_zero_is_understood(load: float, why: Literal["steady"]) -> None:
    decision = decide(ScalePolicy(2, 9), Picture(0.0, Demand(0.0, load), ready(2), 60), ScaleState(2))
    assert (decision.why, decision.desired) == (why, 2)
