"""How full the ready replicas of each pool are, as this router sees them, for whoever sizes pools. Decides nothing."""

import time
from collections.abc import Callable, Iterable

from headrace.v1 import fleet_pb2
from headrace_router.replicas import STALE_S, Replica


def pool_loads(replicas: Iterable[Replica], clock: Callable[[], float] = time.monotonic) -> list[fleet_pb2.PoolLoad]:
    """One sum per pool. A replica that is not ready, or whose load is old, is left out and spoils no sum."""
    now, sums = clock(), dict[str, fleet_pb2.PoolLoad]()
    for replica in replicas:
        if not replica.ready or now - replica.load_at > STALE_S:
            continue
        pool, load = replica.row.pool, replica.load
        total = sums.setdefault(pool, fleet_pb2.PoolLoad(pool=pool))
        total.num_replicas += 1
        total.num_running += load.num_running
        total.num_waiting += load.num_waiting
        total.num_promised_pages += load.num_promised_pages
        total.num_total_pages += load.num_total_pages
        total.oldest_wait_ms = max(total.oldest_wait_ms, round(load.oldest_wait_ms))
    return list(sums.values())
