"""The waiting room: bounded, ordered, and nobody is passed for ever."""

from __future__ import annotations

import pytest

from headrace_worker.scheduling.fairness import VirtualTokens
from headrace_worker.scheduling.request import Request
from headrace_worker.scheduling.waiting import Waiting, WaitingRoom
from tests.unit.worker.scheduling.fakes import Driver, make_limits


def make_room(max_waiting: int = 100) -> WaitingRoom:
    return WaitingRoom(max_waiting, patience_s=5.0, fairness=VirtualTokens())


def put(room: WaitingRoom, name: str, key: str = "a", now: float = 0.0, **fields: object) -> Waiting:
    request = Request(len(room), name, 1, (1, 2, 3), 4, fair_key=key, **fields)  # type: ignore[arg-type]
    return room.add(request, now)


def order(room: WaitingRoom) -> list[str]:
    names = []
    while len(room):
        entry = room.candidates(1)[0]
        names.append(entry.request.response_id)
        room.remove(entry)
    return names


def test_one_key_fills_half_and_all_fill_the_whole() -> None:
    driver = Driver(make_limits(max_waiting=4))
    keys = ["a", "a", "a", "b", "c", "d", "a"]
    refused = [driver.submit(16, 4, fair_key=key).refused for key in keys]
    reasons = [refusal.reason if refusal else None for refusal in refused]
    assert reasons == [None, None, "share_exceeded", None, None, "busy", "share_exceeded"]
    assert all(refusal.retry_after_s for refusal in refused if refusal)
    driver.run()


def test_order_is_class_then_key_then_arrival() -> None:
    room = make_room()
    put(room, "low", "a", priority=2)
    put(room, "first", "a")
    put(room, "second", "a")
    put(room, "other", "b")
    room.fairness.charge("a", 10, 1.0)
    assert order(room) == ["other", "first", "second", "low"]


def test_a_charge_changes_whose_turn_it_is() -> None:
    room = make_room()
    for name in ("a1", "a2"):
        put(room, name, "a")
    for name in ("b1", "b2"):
        put(room, name, "b")
    assert room.candidates(4)[0].request.response_id == "a1"
    room.fairness.charge("a", 1, 1.0)
    assert [entry.request.response_id for entry in room.candidates(4)] == ["b1", "a1", "b2", "a2"]


def test_half_a_deadline_promotes_to_the_urgent_class() -> None:
    room = make_room()
    put(room, "batch", "a", priority=2, queue_deadline_s=10.0)
    for name in ("urgent", "late"):
        put(room, name, "b")
    room.fairness.charge("b", 1, 1.0)
    room.advance(4.9)
    assert room.candidates(1)[0].request.response_id == "urgent"
    room.advance(5.0)
    assert order(room) == ["batch", "urgent", "late"]


def test_the_low_class_is_served_under_endless_urgent_arrivals() -> None:
    driver = Driver(make_limits(num_pages=2, max_running=1))
    for _ in range(20):
        driver.submit(16, 8, fair_key="high")
    low = driver.submit(16, 8, fair_key="low", priority=2, queue_deadline_s=2.0)
    while not low.is_over:
        if len(driver.scheduler.room) < 20:
            driver.submit(16, 8, fair_key="high")
        driver.step()
    assert low.refused is None
    assert low.finished[0].reason == "length"
    assert 1.0 <= low.finished[0].queue_s <= 1.2


def test_the_queue_deadline_refuses_on_time() -> None:
    driver = Driver(make_limits(num_pages=4, max_running=1))
    running = driver.submit(16, 40)
    driver.step()
    waiting = driver.submit(16, 4, queue_deadline_s=0.1)
    assert driver.scheduler.next_deadline_s() == pytest.approx(driver.now + 0.1)
    submitted_s = driver.now
    while waiting.refused is None:
        driver.step()
    assert waiting.refused.reason == "queue_deadline"
    assert waiting.refused.retry_after_s is not None
    assert 0.1 <= driver.now - submitted_s <= 0.1 + 2.5 * driver.step_s
    assert not running.is_over
    driver.run()


def test_a_head_that_does_not_fit_is_passed_until_half_its_deadline() -> None:
    """Then nothing enters before it, and it gets the room that ends of others leave."""
    driver = Driver(make_limits(num_pages=10, max_running=8))
    driver.submit(16, 80)
    driver.step()
    large = driver.submit(16, 112, queue_deadline_s=1.0)
    before = driver.submit(16, 8)
    driver.step()
    assert large.accepted is None
    assert before.accepted is not None
    while driver.now < 0.55:
        driver.step()
    behind = driver.submit(16, 8)
    for _ in range(5):
        driver.step()
    assert behind.accepted is None
    driver.run()
    assert before.accepted_s < large.accepted_s <= behind.accepted_s


def test_timers_of_requests_that_left_do_not_pile_up() -> None:
    room = make_room()
    for index in range(5000):
        room.remove(put(room, str(index), priority=1, queue_deadline_s=1e6))
    assert len(room._deadlines) < 1000
    assert len(room._dues) < 1000


def test_idle_after_thousands_that_never_ran() -> None:
    """B105: refused full, expired, cancelled in the queue: nothing they touched is left."""
    driver = Driver(make_limits(num_pages=2, max_running=1, max_waiting=2))
    running = driver.submit(16, 16, fair_key="running")
    driver.step()
    for _ in range(1000):
        full = [driver.submit(16, 16, fair_key=key) for key in "abc"][-1]
        assert full.refused is not None
        for entry in list(driver.scheduler.room):
            driver.cancel(driver.outcomes[entry.request.response_id])
        driver.scheduler._cancels.apply(driver.now)
        expired = driver.submit(16, 16, fair_key="d", queue_deadline_s=0.001)
        driver.scheduler._entrance.expire(driver.now + 0.002)
        driver.note(driver.scheduler.take_events())
        driver.check()
        assert expired.refused is not None
    driver.run()
    assert running.finished[0].reason == "length"
    assert all(outcome.is_over for outcome in driver.outcomes.values())
    assert driver.scheduler.pool.num_held == 0
    assert not driver.scheduler.running.live_handles
    assert not driver.scheduler.room._lanes or not any(driver.scheduler.room._lanes.values())
