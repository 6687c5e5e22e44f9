"""Whether the books balance: pages counted one by one against the counters, tables and promises that claim them.

    free + cached + held + quarantined = total
    owed <= free + evictable
    the holders of each page = the tables that name it

Only looks. Costs O(pages + tables): called in tests after every step, in production when idle.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headrace_worker.scheduling.group import Group
from headrace_worker.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Imbalance:
    """One broken equation: which, and its two sides."""

    what: str
    expected: int
    actual: int


def audit(scheduler: Scheduler) -> tuple[Imbalance, ...]:
    """Every imbalance; empty when all is well."""
    groups = scheduler.running.groups
    pairs = [*_pool_equations(scheduler), *_promise_equations(scheduler, groups), *_holder_equations(scheduler, groups)]
    found = [Imbalance(what, expected, actual) for what, expected, actual in pairs if expected != actual]
    ledger = scheduler.ledger
    if not ledger.holds():
        found.append(Imbalance("owed pages beyond free and evictable", scheduler.pool.num_available, ledger.num_owed))
    if scheduler.is_idle:
        found.extend(_idle_imbalances(scheduler))
    return tuple(found)


def _pool_equations(scheduler: Scheduler) -> list[tuple[str, int, int]]:
    pool = scheduler.pool
    free, cached, held, quarantined = pool.count_states()
    return [
        ("pages in all states", pool.num_pages, free + cached + held + quarantined),
        ("free pages", free, pool.num_free),
        ("cached pages", cached, pool.num_cached),
        ("held pages", held, pool.num_held),
        ("quarantined pages", quarantined, pool.num_quarantined),
    ]


def _promise_equations(scheduler: Scheduler, groups: list[Group]) -> list[tuple[str, int, int]]:
    ledger = scheduler.ledger
    equations = [
        ("promised pages", sum(group.reservation.promise for group in groups if group.is_hard), ledger.num_promised),
        ("owed pages", sum(group.reservation.owed for group in groups if group.is_hard), ledger.num_owed),
        (
            "running choices",
            sum(len(group.live) for group in groups if not group.is_suspended),
            scheduler.running.num_choices,
        ),
        ("statistical requests", sum(1 for group in groups if not group.is_hard), len(scheduler.running.statistical)),
        ("preempted requests", sum(1 for group in groups if group.is_suspended), len(scheduler.running.suspended)),
    ]
    equations.extend(
        (f"pages owed to {group.request.response_id}", group.owed_by_state(scheduler.pool), group.reservation.owed)
        for group in groups
    )
    return equations


def _holder_equations(scheduler: Scheduler, groups: list[Group]) -> list[tuple[str, int, int]]:
    claims: Counter[int] = Counter()
    for group in groups:
        for sequence in (group.prompt, *group.live):
            claims.update(sequence.page_table)
    pool = scheduler.pool
    equations = [(f"holders of page {page}", count, pool.holders(page)) for page, count in claims.items()]
    return [*equations, ("pages in tables", len(claims), pool.num_held)]


def _idle_imbalances(scheduler: Scheduler) -> list[Imbalance]:
    """When nothing waits or runs, nothing may be held, owed, promised or named."""
    leftovers = {
        "held pages when idle": scheduler.pool.num_held,
        "promised pages when idle": scheduler.ledger.num_promised,
        "owed pages when idle": scheduler.ledger.num_owed,
        "live handles when idle": len(scheduler.running.live_handles),
        "queued tokens when idle": scheduler.room.num_queued_tokens,
    }
    return [Imbalance(what, 0, actual) for what, actual in leftovers.items() if actual]
