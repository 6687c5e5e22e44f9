"""The load of a replica in numbers, read from the scheduler in O(1). Knows no wire format."""

from __future__ import annotations

from typing import NamedTuple

from headrace_worker.scheduling.scheduler import Scheduler


class Load(NamedTuple):
    """Running counts choices, waiting counts requests; the four page states sum to the total.

    Of the statistical class: requests that run, that are preempted now, and preemptions since the start.
    """

    num_running: int
    num_waiting: int
    num_queued_tokens: int
    num_promised_pages: int
    num_free_pages: int
    num_held_pages: int
    num_cached_pages: int
    num_quarantined_pages: int
    num_total_pages: int
    oldest_wait_s: float
    # Pages used / promised over all requests that have ended; None before the first.
    reservation_utilization: float | None
    num_statistical: int = 0
    num_suspended: int = 0
    num_preempted: int = 0


def report_load(scheduler: Scheduler, now: float) -> Load:
    pool, ledger, room, running = scheduler.pool, scheduler.ledger, scheduler.room, scheduler.running
    oldest_s = room.oldest_arrival_s()
    ended = ledger.num_promised_ended
    return Load(
        num_running=running.num_choices,
        num_waiting=len(room),
        num_queued_tokens=room.num_queued_tokens,
        num_promised_pages=ledger.num_promised,
        num_free_pages=pool.num_free,
        num_held_pages=pool.num_held,
        num_cached_pages=pool.num_cached,
        num_quarantined_pages=pool.num_quarantined,
        num_total_pages=pool.num_pages,
        oldest_wait_s=0.0 if oldest_s is None else now - oldest_s,
        reservation_utilization=ledger.num_used_ended / ended if ended else None,
        num_statistical=len(running.statistical) - len(running.suspended),
        num_suspended=len(running.suspended),
        num_preempted=running.num_preempted,
    )
