"""The load report says what is there."""

from __future__ import annotations

import pytest

from headrace_worker.scheduling.load import report_load
from tests.unit.worker.scheduling.fakes import Driver, make_limits


def test_the_load_of_one_running_and_two_waiting() -> None:
    driver = Driver(make_limits(max_running=2))
    driver.submit(20, 30, n=2)
    driver.step()
    driver.submit(40, 8)
    driver.now += 0.5
    driver.submit(50, 8)
    driver.step()
    load = report_load(driver.scheduler, driver.now)
    assert (load.num_running, load.num_waiting, load.num_queued_tokens) == (2, 2, 90)
    assert (load.num_promised_pages, load.num_held_pages, load.num_cached_pages) == (7, 3, 0)
    assert load.num_free_pages == load.num_total_pages - 3
    assert load.oldest_wait_s == pytest.approx(0.51)
    assert load.reservation_utilization is None
    driver.run()
    # 20 + 30 tokens twice: 7 of 7 pages; 47 positions: 3 of 3; 57: 4 of 4.
    assert report_load(driver.scheduler, driver.now).reservation_utilization == 1.0


def test_utilization_counts_what_was_promised_for_nothing() -> None:
    driver = Driver(make_limits(), model=lambda context, choice: (257,))
    driver.submit(16, 48)
    driver.run()
    assert report_load(driver.scheduler, driver.now).reservation_utilization == 0.25
