"""How full pools are: who is ready and spoke lately counts, and nobody else spoils the sum."""

from headrace.v1 import worker_pb2
from headrace_router.pool_loads import pool_loads
from headrace_router.replicas import STALE_S
from tests.unit.router.fakes import Fleet


def test_replicas_that_are_not_ready_or_silent_are_left_out() -> None:
    now = [100.0]
    fleet = Fleet(lambda: now[0])
    first, second, old, loading, gone = fleet.ready("w-1", "w-2", "w-3", "w-4", "w-5")
    for replica, waits_ms in ((first, 10.4), (second, 700.0), (loading, 9000.0), (gone, 9000.0)):
        replica.load = worker_pb2.Load(
            num_running=3, num_waiting=1, num_promised_pages=40, num_total_pages=100, oldest_wait_ms=waits_ms
        )
        replica.load_at = now[0]
    old.load, old.load_at = worker_pb2.Load(num_running=99), now[0] - STALE_S - 0.1
    loading.state, gone.connected = "loading", False
    (load,) = pool_loads(fleet.table, lambda: now[0])
    assert load.pool == first.row.pool
    assert (load.num_replicas, load.num_running, load.num_waiting) == (2, 6, 2)
    assert (load.num_promised_pages, load.num_total_pages, load.oldest_wait_ms) == (80, 200, 700)


def test_a_pool_without_ready_replicas_has_no_sum() -> None:
    assert pool_loads(Fleet(lambda: 0.0).table) == []
