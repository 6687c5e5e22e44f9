"""The table: the registry says who exists, the replica says how it is."""

import pytest

from headrace.v1 import fleet_pb2, worker_pb2
from headrace_router.in_flight import Sent
from headrace_router.replicas import GRACE_S, STALE_S, ReplicaTable
from headrace_router.scoring import View
from tests.unit.router.fakes import Fleet, full, row


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def fleet(now: list[float]) -> Fleet:
    return Fleet(lambda: now[0])


def ids(table: ReplicaTable) -> set[str]:
    return {replica.row.ref.id for replica in table}


def only_view(fleet: Fleet) -> View:
    (view,) = fleet.table.views("m", {})
    return view


async def test_a_delta_changes_and_removes(fleet: Fleet) -> None:
    fleet.ready("w-1", "w-2")
    fleet.table.apply(
        fleet_pb2.ReplicaSet(registry_id="r1", revision=2, replicas=[row("w-3")], removed=["w-1", "unknown"])
    )
    assert ids(fleet.table) == {"w-2", "w-3"}


async def test_a_full_list_removes_what_it_does_not_name(fleet: Fleet) -> None:
    """B74: the delete event was lost while the link was cut; the list after it says all."""
    fleet.ready("w-1", "w-2")
    fleet.table.apply(full(row("w-1"), revision=9))
    assert ids(fleet.table) == {"w-1"}


async def test_a_registry_that_starts_with_nothing_does_not_end_who_answers(fleet: Fleet, now: list[float]) -> None:
    fleet.ready("w-1")
    fleet.table.apply(full(registry_id="r2"))
    assert fleet.table.num_ready("m") == 1
    now[0] += GRACE_S - 0.1
    fleet.table.drop_unlisted()
    assert ids(fleet.table) == {"w-1"}
    now[0] += 0.2
    fleet.table.drop_unlisted()
    assert ids(fleet.table) == set()


async def test_who_is_listed_again_stays(fleet: Fleet, now: list[float]) -> None:
    fleet.ready("w-1")
    fleet.table.apply(full(registry_id="r2"))
    fleet.table.apply(fleet_pb2.ReplicaSet(registry_id="r2", revision=2, replicas=[row("w-1")]))
    now[0] += 2 * GRACE_S
    fleet.table.drop_unlisted()
    assert fleet.table.num_ready("m") == 1


async def test_who_is_not_listed_and_does_not_answer_goes_at_once(fleet: Fleet) -> None:
    (replica,) = fleet.ready("w-1")
    fleet.table.set_connected(replica, False)
    fleet.table.apply(full(registry_id="r2"))
    assert ids(fleet.table) == set()


async def test_a_replica_that_cannot_be_reached_is_not_ready(fleet: Fleet) -> None:
    (replica,) = fleet.ready("w-1")
    assert only_view(fleet).connected
    fleet.table.set_connected(replica, False)
    assert (only_view(fleet).connected, fleet.table.num_ready("m")) == (False, 0)


async def test_drain_beats_readiness(fleet: Fleet) -> None:
    """B76."""
    (replica,) = fleet.ready("w-1")
    fleet.table.set_state(replica, "e1", worker_pb2.REPLICA_STATE_DRAINING)
    assert (only_view(fleet).state, fleet.table.num_ready("m")) == ("draining", 0)


async def test_a_report_is_fresh_for_a_while(fleet: Fleet, now: list[float]) -> None:
    fleet.ready("w-1")
    now[0] += STALE_S
    assert only_view(fleet).fresh
    now[0] += 0.1
    assert not only_view(fleet).fresh


async def test_a_new_epoch_makes_void_what_was_known_of_the_old_one(fleet: Fleet) -> None:
    (replica,) = fleet.ready("w-1")
    fleet.in_flight.add(Sent("d1", "w-1", "e1", 100.0))
    fleet.table.set_load(replica, worker_pb2.Load(num_running=7))
    for _ in range(5):
        replica.breaker.on_outcome("fault", 100.0, 1.0)
    assert only_view(fleet).breaker_open
    fleet.say_ready("w-1", epoch="e2")
    view = only_view(fleet)
    assert (view.epoch, view.num_running, view.num_in_flight, view.breaker_open) == ("e2", 0, 0, False)


async def test_a_load_report_lists_decisions_that_then_count_no_more(fleet: Fleet) -> None:
    (replica,) = fleet.ready("w-1")
    for name in ("d1", "d2"):
        fleet.in_flight.add(Sent(name, "w-1", "e1", 100.0))
    fleet.table.set_load(replica, worker_pb2.Load(num_waiting=1, decisions=["d1"]))
    view = only_view(fleet)
    assert (view.num_waiting, view.num_unseen, view.num_in_flight) == (1, 1, 2)


async def test_another_endpoint_under_the_same_id_is_another_replica(fleet: Fleet) -> None:
    (before,) = fleet.ready("w-1")
    fleet.table.apply(full(row("w-1", endpoint="127.0.0.1:99")))
    assert fleet.table.get("w-1") is not before
    assert fleet.table.num_ready("m") == 0


async def test_the_pool_may_allow_less_than_the_engine_can(now: list[float]) -> None:
    fleet = Fleet(lambda: now[0], max_sequence_tokens=1000, classes=["standard"])
    fleet.ready("w-1")
    assert (only_view(fleet).max_context_tokens, only_view(fleet).classes) == (1000, ("standard",))


async def test_who_waits_is_woken_by_readiness_and_by_nothing_less(fleet: Fleet) -> None:
    (replica,) = fleet.ready("w-1")
    changed = fleet.table.changed
    fleet.table.set_load(replica, worker_pb2.Load(num_running=1))
    fleet.table.set_state(replica, "e1", worker_pb2.REPLICA_STATE_READY)
    assert not changed.is_set()
    fleet.table.set_state(replica, "e1", worker_pb2.REPLICA_STATE_DEGRADED)
    assert changed.is_set()
