"""Time of an all-reduce and of a point-to-point send by message size and link. Knows no model.

One-shot (every rank reads every other rank's buffer) for small messages, two-shot (reduce-scatter, then all-gather) for
large ones; a library picks the faster, and the change-over is blended.
"""

import math
from dataclasses import dataclass

from headrace_worker.perf.cards import Card

CHANGE_OVER = 6.0


@dataclass(frozen=True)
class CollectiveEfficiency:
    """Latencies in seconds and the fractions of the published link rate reached.

    `two_shot` is what a pair reaches; it grows by the power `two_shot_growth` of (ranks / 2): more links work at once.
    """

    latency_s: float
    latency_growth: float
    one_shot: float
    two_shot_latency_s: float
    two_shot: float
    two_shot_growth: float


def all_reduce_bytes(num_bytes: float, num_ranks: int) -> float:
    """Bytes that each rank must send (and receive) at least: 2 (n - 1) / n of the message (Patarasuk and Yuan 2009)."""
    return 2.0 * (num_ranks - 1) / num_ranks * num_bytes


def all_reduce_time_s(num_bytes: float, num_ranks: int, card: Card, efficiency: CollectiveEfficiency) -> float:
    """Seconds to sum a buffer of `num_bytes` over `num_ranks`; 0 for one rank or an empty buffer."""
    if num_ranks == 1 or num_bytes == 0:
        return 0.0
    doublings = math.log2(num_ranks / 2)
    latency_s = efficiency.latency_s * (1 + efficiency.latency_growth * doublings)
    one_shot = latency_s + (num_ranks - 1) * num_bytes / (efficiency.one_shot * card.link_bandwidth)
    reached = efficiency.two_shot * (num_ranks / 2) ** efficiency.two_shot_growth
    two_shot = latency_s + efficiency.two_shot_latency_s * math.log2(num_ranks)
    two_shot += all_reduce_bytes(num_bytes, num_ranks) / (reached * card.link_bandwidth)
    faster, slower = min(one_shot, two_shot), max(one_shot, two_shot)
    return float(faster * (1.0 + (faster / slower) ** CHANGE_OVER) ** (-1.0 / CHANGE_OVER))


def send_time_s(num_bytes: float, card: Card, efficiency: CollectiveEfficiency) -> float:
    """Seconds to hand `num_bytes` to one peer over the same link."""
    return efficiency.latency_s + num_bytes / (efficiency.two_shot * card.link_bandwidth)
