"""Two thousand requests with cancels at random end with every page free, and every figure at rest."""

from __future__ import annotations

import random

import pytest

from headrace_worker.scheduling.audit import audit
from headrace_worker.scheduling.load import report_load
from tests.unit.worker.scheduling.fakes import END, Driver, digest_model, make_limits


def model(context: tuple[int, ...], choice: int) -> tuple[int, ...]:
    (drawn,) = digest_model(context[-8:], choice)
    return (END,) if drawn < 8 else (drawn,)


@pytest.mark.parametrize("overlap", [False, True])
def test_two_thousand_requests_leave_nothing_behind(overlap: bool) -> None:
    chance = random.Random(2000)
    limits = make_limits(num_pages=300, max_running=32, max_waiting=200, overlap=overlap)
    driver = Driver(limits, model, depth=2 if overlap else 1)
    num_submitted = num_steps = 0
    while num_submitted < 2000 or not driver.scheduler.is_idle:
        for _ in range(chance.randrange(8) if num_submitted < 2000 else 0):
            prompt = [num_submitted % 5] * chance.randrange(1, 150)
            driver.submit(
                prompt,
                chance.randrange(1, 40),
                n=chance.choice((1, 1, 1, 2, 3)),
                fair_key=str(chance.randrange(6)),
                priority=chance.randrange(3),
                queue_deadline_s=chance.choice((None, 0.5)),
            )
            num_submitted += 1
        if chance.random() < 0.3 and driver.outcomes:
            driver.cancel(chance.choice(list(driver.outcomes.values())[-100:]), chance.choice((-1, -1, 0, 1)))
        driver.step()
        num_steps += 1
        if num_steps % 10 == 0:
            driver.check()
    assert all(outcome.is_over for outcome in driver.outcomes.values())
    assert audit(driver.scheduler) == ()
    kinds = {finished.kind for outcome in driver.outcomes.values() for finished in outcome.finished.values()}
    assert kinds == {"completed", "incomplete", "cancelled"}
    load = report_load(driver.scheduler, driver.now)
    assert (load.num_held_pages, load.num_promised_pages, load.num_running, load.num_waiting) == (0, 0, 0, 0)
    assert load.num_free_pages + load.num_cached_pages == 300
    driver.scheduler.clear_cache(2)
    assert driver.scheduler.pool.num_free == 300
