"""The audit sees what it is there for: each kind of broken book is reported by name."""

from __future__ import annotations

from headrace_worker.scheduling.audit import audit
from tests.unit.worker.scheduling.fakes import Driver, make_limits


def running_driver() -> Driver:
    driver = Driver(make_limits())
    driver.submit(20, 30, n=2)
    driver.step()
    driver.step()
    assert audit(driver.scheduler) == ()
    return driver


def whats(driver: Driver) -> set[str]:
    return {imbalance.what for imbalance in audit(driver.scheduler)}


def test_a_leaked_page_is_seen() -> None:
    driver = running_driver()
    driver.scheduler.pool.allocate()
    assert whats(driver) == {"pages in tables"}


def test_a_page_released_too_early_is_seen() -> None:
    driver = running_driver()
    driver.scheduler.pool.release(driver.scheduler.running.groups[0].live[1].page_table[1])
    assert "pages in tables" in whats(driver)


def test_a_lost_page_is_seen() -> None:
    driver = running_driver()
    driver.scheduler.pool._free.pop()
    assert whats(driver) == {"pages in all states"}


def test_a_promise_that_is_not_owed_is_seen() -> None:
    driver = running_driver()
    driver.scheduler.running.groups[0].reservation.forgive(1)
    assert whats(driver) == {"pages owed to r0"}


def test_promises_beyond_the_pool_are_seen() -> None:
    driver = running_driver()
    driver.scheduler.ledger.num_owed += 100
    assert whats(driver) == {"owed pages", "owed pages beyond free and evictable"}


def test_what_is_left_when_idle_is_seen() -> None:
    driver = Driver(make_limits())
    driver.scheduler.running.live_handles.add(5)
    assert whats(driver) == {"live handles when idle"}
