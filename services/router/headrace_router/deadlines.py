"""Budgets in time (DESIGN section 5): how long a request may be held, and how long it may wait in a queue. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """One SLO class, in seconds; ``inter_token_s`` 0 = none. ``statistical``: it gives way to others."""

    ttft_s: float
    max_queue_s: float
    delivery_reserve_s: float = 0.0
    inter_token_s: float = 0.0
    statistical: bool = False


@dataclass(frozen=True)
class QueueDeadline:
    """How long a request may wait; ``infeasible``: its TTFT budget cannot be met even without a queue."""

    wait_s: float
    infeasible: bool = False


def queue_deadline(
    budget: Budget, predicted_prefill_s: float, *, left_s: float = 0.0, total_left_s: float = 0.0
) -> QueueDeadline:
    """TTFT budget less predicted prefill less delivery reserve; ``left_s`` of an earlier attempt goes before it.

    Where nothing would be left to wait, however idle the replica, the request is served all the same within
    ``max_queue_s``. ``total_left_s`` (0 = none) bounds every wait.
    """
    wait_s = budget.ttft_s - predicted_prefill_s - budget.delivery_reserve_s
    infeasible = wait_s <= 0
    if infeasible:
        wait_s = budget.max_queue_s
    if left_s > 0:
        wait_s = left_s
    if total_left_s > 0:
        wait_s = min(wait_s, total_left_s)
    return QueueDeadline(wait_s, infeasible)


def hold_limit_s(pool_hold_s: float, predicted_prefill_s: float, total_left_s: float = 0.0) -> float:
    """How long a request may be held while no replica is ready (decision 16); ``total_left_s`` 0 = no deadline."""
    return max(0.0, total_left_s - predicted_prefill_s) if total_left_s > 0 else pool_hold_s
