"""What becomes of a request: picked, held until one is ready, or refused with a reason and a wait."""

import asyncio
import random
import time
from dataclasses import replace
from typing import Any

import pytest

from headrace.v1 import worker_pb2
from headrace_kit.errors import HeadraceError
from headrace_router.deadlines import Budget
from headrace_router.demand import Demand
from headrace_router.dispatcher import Dispatcher, Limits
from headrace_router.prediction import StepCost
from headrace_router.prefix_index import NoIndex
from headrace_router.scoring import Ask
from tests.meters import Moved
from tests.unit.router.fakes import Fleet, full, row, until

ASK = Ask(model="m", slo_class="standard", num_prompt_tokens=100, max_output_tokens=28)


def dispatcher(fleet: Fleet, demand: Demand | None = None) -> Dispatcher:
    return Dispatcher(fleet.rules, fleet.table, demand or Demand(), NoIndex(), random.Random(1))


def fleet_of(*ready: str, **pool: object) -> Fleet:
    fleet = Fleet(time.monotonic, **pool)
    if ready:
        fleet.ready(*ready)
    return fleet


async def refusal(fleet: Fleet, ask: Ask = ASK, total_left_s: float = 0.0) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        await dispatcher(fleet).pick(ask, Limits(total_s=total_left_s))
    return caught.value


async def test_a_ready_replica_is_picked_at_once() -> None:
    picked = await dispatcher(fleet_of("w-1")).pick(ASK)
    assert picked.replica.row.ref.id == "w-1"
    assert picked.held_s < 5


async def test_of_a_large_fleet_some_are_looked_at_and_all_before_a_request_waits() -> None:
    names = [f"w-{number}" for number in range(150)]
    fleet = fleet_of(*names)
    picked = await dispatcher(fleet).pick(ASK)
    assert len(picked.choice.candidates) <= 64
    excluded = frozenset(names[:-1])
    picked = await dispatcher(fleet).pick(replace(ASK, excluded=excluded))
    assert picked.replica.row.ref.id == "w-149"
    assert len(picked.choice.candidates) == 150


async def test_in_a_large_fleet_the_few_that_prefill_are_found_too() -> None:
    fleet = fleet_of()
    names = [f"w-{number}" for number in range(150)]
    fleet.table.apply(full(*(row(name, role="decode") for name in names), row("p-1", role="prefill")))
    for name in (*names, "p-1"):
        replica = fleet.say_ready(name, kv_bytes_per_token=1)
        replica.cost = StepCost(0.001, 0.001)
        fleet.table.set_load(replica, worker_pb2.Load(num_running=50))
    for _ in range(5):
        picked = await dispatcher(fleet).pick(ASK)
        assert picked.prefill is not None and picked.prefill.row.ref.id == "p-1", picked.pairing


async def test_from_zero_the_request_is_held_until_one_is_ready() -> None:
    """B156."""
    fleet, demand = fleet_of(), Demand()
    held = asyncio.create_task(dispatcher(fleet, demand).pick(ASK, Limits(total_s=60.0)))
    await until(lambda: demand.num_held("m") == 1)
    fleet.ready("w-1")
    picked = await held
    assert picked.replica.row.ref.id == "w-1"
    assert demand.num_held("m") == 0


async def test_nobody_is_held_longer_than_the_pool_says() -> None:
    error = await refusal(fleet_of(hold_ms=30))
    assert (error.reason, error.row.http) == ("no_replica", 503)
    assert error.retry_after_s is not None
    assert error.retry_after_s >= 1


async def test_nor_longer_than_the_client_waits() -> None:
    started = time.monotonic()
    assert (await refusal(fleet_of(), total_left_s=0.03)).reason == "no_replica"
    assert time.monotonic() - started < 5


async def test_a_full_hold_room_refuses_at_once() -> None:
    """B156: hold queue 100: the 101st gets 503 with Retry-After."""
    fleet, demand = fleet_of(max_held=100), Demand()
    one = dispatcher(fleet, demand)
    held = [asyncio.create_task(one.pick(ASK)) for _ in range(100)]
    await until(lambda: demand.num_held("m") == 100)
    refused = Moved("route_refused_total", reason="no_replica")
    with pytest.raises(HeadraceError) as caught:
        await one.pick(ASK)
    assert caught.value.reason == "no_replica" and refused() == 1
    assert caught.value.retry_after_s is not None
    fleet.ready("w-1")
    assert len(await asyncio.gather(*held)) == 100
    assert demand.num_held("m") == 0


async def test_one_tenant_fills_half_the_hold_room_and_no_more() -> None:
    """Decision 9: over its own share it is told so (429); others still come in, until the room is full (503)."""
    fleet, demand = fleet_of(max_held=4), Demand()
    one = dispatcher(fleet, demand)
    greedy, others = replace(ASK, fair_key="a"), [replace(ASK, fair_key=key) for key in ("b", "c")]
    held = [asyncio.create_task(one.pick(greedy)) for _ in range(2)]
    await until(lambda: demand.num_held("m", "a") == 2)
    with pytest.raises(HeadraceError) as caught:
        await one.pick(greedy)
    assert (caught.value.reason, caught.value.row.http, caught.value.retry_after_s) == ("share_exceeded", 429, 10.0)
    held += [asyncio.create_task(one.pick(each)) for each in others]
    await until(lambda: demand.num_held("m") == 4)
    with pytest.raises(HeadraceError) as caught:
        await one.pick(replace(ASK, fair_key="d"))
    assert (caught.value.reason, caught.value.row.http, caught.value.retry_after_s) == ("no_replica", 503, 10.0)
    fleet.ready("w-1")
    await asyncio.gather(*held)
    assert demand.num_held("m", "a") == 0


def queued(fleet: Fleet, replica_id: str, num_tokens: int, **load: Any) -> None:
    """It says that so many prompt tokens wait, each of which takes it a millisecond."""
    replica = fleet.table.get(replica_id)
    assert replica is not None
    fleet.table.set_coefficients(replica, worker_pb2.StepModel(coefficients={"tokens": 0.001}))
    fleet.table.set_load(replica, worker_pb2.Load(num_queued_tokens=num_tokens, **load))


BUSY = replace(ASK, budget=Budget(ttft_s=0.7, max_queue_s=5))


async def test_when_no_queue_is_short_enough_the_refusal_is_immediate_and_its_wait_true() -> None:
    """700 ms less 100 ms of prefill: 600 ms may be waited, and the shorter queue takes 1.5 s."""
    fleet = fleet_of("w-1", "w-2")
    queued(fleet, "w-1", 2000)
    queued(fleet, "w-2", 1500)
    started = time.monotonic()
    error = await refusal(fleet, BUSY)
    assert time.monotonic() - started < 0.5
    assert (error.reason, error.row.http) == ("queue_deadline", 503)
    assert error.retry_after_s == pytest.approx(0.9)
    queued(fleet, "w-2", 600)
    assert (await dispatcher(fleet).pick(BUSY)).replica.row.ref.id == "w-2"


async def test_what_is_left_of_an_earlier_attempts_queue_deadline_counts() -> None:
    fleet = fleet_of("w-1")
    queued(fleet, "w-1", 300)
    assert await dispatcher(fleet).pick(BUSY)
    with pytest.raises(HeadraceError, match="longer than the request may wait"):
        await dispatcher(fleet).pick(BUSY, Limits(queue_s=0.2))


async def test_who_could_never_meet_its_budget_waits_as_long_as_its_class_allows() -> None:
    """DESIGN section 5: 10 s of prefill against 700 ms; 4 s of queue are within the class's 5."""
    fleet, long = fleet_of("w-1"), replace(BUSY, num_prompt_tokens=8000)
    queued(fleet, "w-1", 4000)
    assert await dispatcher(fleet).pick(long)
    queued(fleet, "w-1", 5500)
    assert (await refusal(fleet, long)).retry_after_s == pytest.approx(0.5)


async def test_a_stale_report_refuses_nobody() -> None:
    """B85: a pool of one whose metrics stand still: the queue that it once had says nothing."""
    now = [0.0]
    fleet = Fleet(lambda: now[0])
    fleet.ready("w-1")
    queued(fleet, "w-1", 10**6, num_waiting=256, max_waiting=256)
    now[0] = 30.0
    one = Dispatcher(fleet.rules, fleet.table, Demand(), NoIndex(), random.Random(1), clock=lambda: now[0])
    assert (await one.pick(BUSY)).replica.row.ref.id == "w-1"


async def test_when_every_waiting_room_is_full_it_is_busy() -> None:
    fleet = fleet_of("w-1")
    queued(fleet, "w-1", 8000, num_waiting=4, max_waiting=4)
    error = await refusal(fleet, ASK)
    assert (error.reason, error.row.http, error.retry_after_s) == ("busy", 503, 2.0)


async def test_a_client_that_goes_away_leaves_the_hold_room() -> None:
    fleet, demand = fleet_of(), Demand()
    held = asyncio.create_task(dispatcher(fleet, demand).pick(ASK))
    await until(lambda: demand.num_held("m") == 1)
    held.cancel()
    await asyncio.wait([held])
    assert demand.num_held("m") == 0


async def test_retry_after_is_what_is_left_of_a_start_up() -> None:
    now = [0.0]
    fleet = Fleet(lambda: now[0], hold_ms=1)
    fleet.table.apply(full(row("w-1")))
    now[0] = 40.0
    fleet.say_ready("w-1")
    fleet.table.apply(full(row("w-2")))
    now[0] = 55.0
    one = Dispatcher(fleet.rules, fleet.table, Demand(), NoIndex(), random.Random(1), clock=lambda: now[0])
    task = asyncio.create_task(one.pick(ASK, Limits(total_s=0.001)))
    await asyncio.sleep(0)
    now[0] = 56.0
    with pytest.raises(HeadraceError) as caught:
        await task
    assert caught.value.retry_after_s == pytest.approx(24.0)


async def test_when_all_have_refused_it_is_busy() -> None:
    ask = Ask(model="m", slo_class="standard", excluded=frozenset({"w-1"}))
    error = await refusal(fleet_of("w-1"), ask)
    assert (error.reason, error.retry_after_s) == ("busy", 1.0)


async def test_when_all_are_failing_the_wait_is_that_of_the_breaker() -> None:
    fleet = fleet_of("w-1")
    replica = fleet.table.get("w-1")
    assert replica is not None
    for _ in range(5):
        replica.breaker.on_outcome("fault", time.monotonic(), 1.0)
    error = await refusal(fleet)
    assert error.reason == "no_replica"
    assert error.retry_after_s == pytest.approx(1.0, abs=0.2)


async def test_a_half_open_replica_gets_one_request() -> None:
    fleet = fleet_of("w-1")
    replica = fleet.table.get("w-1")
    assert replica is not None
    for _ in range(5):
        replica.breaker.on_outcome("fault", time.monotonic() - 10, 1.0)
    assert (await dispatcher(fleet).pick(ASK)).replica is replica
    assert (await refusal(fleet)).reason == "no_replica"


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (Ask(model="nobody"), "model_not_found"),
        (Ask(model="m", num_prompt_tokens=9000, max_output_tokens=1), "context_length_exceeded"),
        (Ask(model="m", grammar=True), "invalid_argument"),
        (Ask(model="m", logprobs=True), "invalid_argument"),
    ],
)
async def test_what_no_replica_can_do_is_the_callers_mistake(ask: Ask, reason: str) -> None:
    fleet = fleet_of()
    fleet.ready("w-1", grammar=False, logprobs=False)
    assert (await refusal(fleet, ask)).reason == reason


async def test_a_class_that_no_pool_serves_is_told() -> None:
    error = await refusal(fleet_of("w-1", classes=["batch"]))
    assert (error.reason, error.field) == ("invalid_argument", "slo_class")


async def test_a_fleet_that_keeps_no_replica_is_not_waited_for() -> None:
    assert (await refusal(fleet_of(max_replicas=0))).reason == "no_replica"


async def test_who_is_held_when_the_router_stops_is_told_so() -> None:
    one = dispatcher(fleet_of())
    held = asyncio.create_task(one.pick(ASK))
    await asyncio.sleep(0)
    one.draining = True
    with pytest.raises(HeadraceError, match="stopping"):
        await held


async def test_prediction_while_none_is_ready_is_that_of_the_last_replica() -> None:
    fleet = fleet_of("w-1")
    replica = fleet.table.get("w-1")
    assert replica is not None
    fleet.table.set_coefficients(replica, worker_pb2.StepModel(coefficients={"tokens": 0.01}))
    one = dispatcher(fleet)
    assert one.predicted_prefill_s(ASK) == pytest.approx(1.0)
    (view,) = fleet.table.views("m", {replica.record: 60})
    assert one.predicted_prefill_s(ASK, view) == pytest.approx(0.4)
