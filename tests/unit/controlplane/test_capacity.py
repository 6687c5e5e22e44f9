"""Measuring what a replica carries: against a pool whose capacity is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_controlplane.capacity import CapacityMeter, Reading


def readings(meter: CapacityMeter, load: float, *, replicas: int, occupancy: float, seconds: int = 10) -> None:
    for _ in range(seconds):
        meter.note(Reading(load, load / 100, replicas, occupancy))


@given(st.floats(10, 1e6), st.integers(1, 50), st.floats(0.1, 1.0))
def test_a_pool_that_is_partly_full_tells_what_it_could_carry(capacity: float, replicas: int, share: float) -> None:
    meter = CapacityMeter()
    readings(meter, capacity * replicas * share, replicas=replicas, occupancy=share)
    assert meter.capacity == pytest.approx(capacity)


def test_nothing_is_known_before_a_whole_window() -> None:
    meter = CapacityMeter()
    readings(meter, 50, replicas=1, occupancy=0.5, seconds=9)
    assert meter.capacity is None


def test_another_number_of_replicas_begins_a_new_window() -> None:
    meter = CapacityMeter()
    readings(meter, 50, replicas=1, occupancy=0.5, seconds=9)
    readings(meter, 50, replicas=2, occupancy=0.1, seconds=9)
    assert meter.capacity is None


def test_an_almost_empty_pool_only_raises_what_is_known() -> None:
    meter = CapacityMeter(100.0)
    readings(meter, 5, replicas=1, occupancy=0.001)
    assert meter.capacity == 100
    readings(meter, 50, replicas=1, occupancy=0.05)
    assert meter.capacity == pytest.approx(500)


def test_an_idle_pool_teaches_nothing() -> None:
    meter = CapacityMeter(100.0)
    readings(meter, 0, replicas=3, occupancy=0.0, seconds=100)
    assert meter.capacity == 100


def test_what_makes_the_queue_longer_is_not_carried() -> None:
    """Four requests of 100 tokens arrive per second and the queue grows by three: one is served."""
    meter = CapacityMeter()
    for second in range(10):
        meter.note(Reading(400, 4, 1, 1.0, num_waiting=1 + 3 * second))
    assert meter.capacity == pytest.approx(100)


@pytest.mark.parametrize(("occupancy", "expected"), [(0.5, 800), (0.01, 4000)])
def test_who_waits_for_a_moment_does_not_keep_a_pool_from_being_measured(occupancy: float, expected: float) -> None:
    meter = CapacityMeter()
    for second in range(10):
        meter.note(Reading(400, 4, 1, occupancy, num_waiting=second % 2))
    assert meter.capacity == pytest.approx(expected)


def test_a_queue_never_raises_a_capacity() -> None:
    meter = CapacityMeter(100.0)
    for _ in range(30):
        meter.note(Reading(400, 4, 1, 1.0, num_waiting=5))
    assert meter.capacity == 100


def test_a_changed_capacity_is_found_again() -> None:
    meter = CapacityMeter()
    readings(meter, 100, replicas=2, occupancy=0.5)
    readings(meter, 100, replicas=2, occupancy=0.25, seconds=60)
    assert meter.capacity == pytest.approx(200, rel=0.05)


def test_a_changing_load_teaches_less() -> None:
    """While a load rises, what is promised lags behind it."""
    steady, rising = CapacityMeter(100.0), CapacityMeter(100.0)
    readings(steady, 100, replicas=1, occupancy=0.5, seconds=15)
    for second in range(15):
        rising.note(Reading(100.0 * (second + 1), 1, 1, 0.5))
    assert rising.capacity is not None and steady.capacity is not None
    first_rise = (rising.capacity - 100) / (1500 / 0.5 - 100)
    assert first_rise < 0.1
    assert steady.capacity > 140
