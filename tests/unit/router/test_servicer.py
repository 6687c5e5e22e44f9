"""The Router service: decisions out, outcomes back, once each."""

import random
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from headrace.v1 import response_pb2, routing_pb2, worker_pb2
from headrace_kit.errors import InvalidRequest
from headrace_router.decisions import DecisionLog
from headrace_router.demand import Demand
from headrace_router.dispatcher import Dispatcher
from headrace_router.prefix_index import Group, NoIndex, PrefixIndex
from headrace_router.servicer import RouterServicer
from tests.unit.router.fakes import Fleet


class Router:
    """A servicer over a fleet, called as a gateway calls it."""

    def __init__(self, fleet: Fleet, num_explained: int = 100, index: PrefixIndex | None = None) -> None:
        self.fleet, self.demand = fleet, Demand()
        dispatcher = Dispatcher(fleet.rules, fleet.table, self.demand, index or NoIndex(), random.Random(1))
        self.servicer = RouterServicer(
            fleet.rules, fleet.table, fleet.in_flight, dispatcher, self.demand, DecisionLog(num_explained)
        )

    async def route(self, **facts: Any) -> routing_pb2.RouteResponse:
        bounds = response_pb2.Bounds(num_prompt_tokens=100, max_output_tokens=10, n=2)
        request = {"response_id": "r", "attempt": 1, "model": "m", "bounds": bounds, "slo_class": "standard", **facts}
        return await self.servicer.Route(routing_pb2.RouteRequest(**request), None)

    async def report(
        self, decision_id: str, outcome: str = "completed", reason: str = "", gateway_id: str = ""
    ) -> None:
        row = routing_pb2.AttemptOutcome(decision_id=decision_id, outcome=outcome, reason=reason)
        await self.servicer.Report(routing_pb2.ReportRequest(outcomes=[row], gateway_id=gateway_id), None)

    async def explain(self, decision_id: str) -> routing_pb2.ExplainResponse:
        return await self.servicer.Explain(routing_pb2.ExplainRequest(decision_id=decision_id), None)


def router(*ready: str) -> Router:
    fleet = Fleet(time.monotonic)
    fleet.ready(*ready)
    return Router(fleet)


async def test_a_decision_says_what_the_gateway_needs() -> None:
    one = router("w-1")
    replica = one.fleet.table.get("w-1")
    assert replica is not None
    one.fleet.table.set_coefficients(replica, worker_pb2.StepModel(coefficients={"tokens": 0.001}))
    answer = await one.route()
    assert (answer.replica.id, answer.replica.epoch, answer.replica.endpoint) == ("w-1", "e1", "127.0.0.1:1")
    assert (answer.kv_context, answer.page_tokens, answer.inter_token_ms) == (b"ctx", 16, 50)
    assert answer.predicted_prefill_ms == pytest.approx(100)
    assert answer.queue_deadline_ms == 600
    assert not answer.ttft_infeasible
    assert answer.decision_id
    assert "w-1" in answer.why


class KnownHits:
    """An index that knows this many tokens of any prompt, by replica."""

    def __init__(self, fleet: Fleet, **hits: int) -> None:
        self.fleet, self.by_name, self.asked = fleet, hits, list[tuple[bytes, list[Group]]]()

    async def hits(self, chain: bytes, groups: Iterable[Group]) -> Mapping[bytes, int]:
        self.asked.append((chain, list(groups)))
        found = {name: self.fleet.table.get(name.replace("_", "-")) for name in self.by_name}
        return {replica.record: self.by_name[name] for name, replica in found.items() if replica is not None}


async def test_a_decision_counts_on_what_the_index_says_and_tells_it() -> None:
    fleet = Fleet(time.monotonic)
    for replica in fleet.ready("w-1", "w-2", "w-3"):
        fleet.table.set_coefficients(replica, worker_pb2.StepModel(coefficients={"tokens": 0.001}))
    index = KnownHits(fleet, w_1=48, w_2=80)
    one = Router(fleet, index=index)
    answer = await one.route(chain=bytes(96))
    assert (answer.replica.id, answer.num_predicted_hit_tokens) == ("w-2", 80)
    assert answer.predicted_prefill_ms == pytest.approx(20)
    assert answer.queue_deadline_ms == 680
    assert index.asked == [(bytes(96), [Group(b"ctx", 16)])]
    told = await one.explain(answer.decision_id)
    terms = {each.replica.id: dict(each.terms) for each in told.candidates}
    assert {name: term["ttft"] for name, term in terms.items()} == pytest.approx({"w-1": 0.52, "w-2": 0.2, "w-3": 1.0})
    assert all(each.score == pytest.approx(sum(each.terms.values())) for each in told.candidates)
    assert "w-2" in told.why
    assert "holds 80 tokens" in told.why
    cold = await one.route(excluded=["w-1", "w-2"], chain=bytes(96))
    assert (cold.replica.id, cold.num_predicted_hit_tokens, cold.predicted_prefill_ms) == ("w-3", 0, 100)


async def test_a_warm_replica_over_its_share_is_passed_over_and_why_says_so() -> None:
    fleet = Fleet(time.monotonic)
    fleet.ready("w-1", "w-2", "w-3", "w-4")
    one = Router(fleet, index=KnownHits(fleet, w_1=100))
    replica = fleet.table.get("w-1")
    assert replica is not None
    fleet.table.set_load(replica, worker_pb2.Load(num_running=20))
    answer = await one.route(chain=bytes(96))
    assert answer.replica.id != "w-1"
    assert "w-1 holds 100 and is over its share" in answer.why
    (spread,) = [each for each in (await one.explain(answer.decision_id)).candidates if each.replica.id == "w-1"]
    assert spread.filtered.startswith("spread: 21 requests")


async def test_a_full_hit_recomputes_the_last_token() -> None:
    """Decision 15."""
    fleet = Fleet(time.monotonic)
    fleet.ready("w-1")
    answer = await Router(fleet, index=KnownHits(fleet, w_1=100)).route(chain=bytes(96))
    assert answer.num_predicted_hit_tokens == 99


async def test_own_decisions_queue_their_uncached_tokens_until_they_are_seen() -> None:
    one = router("w-1")
    await one.route()
    (view,) = one.fleet.table.views("m", {})
    assert (view.num_unseen_tokens, view.num_unseen_bound_tokens, view.num_recent_tokens > 99) == (100, 120, True)


async def test_an_infeasible_budget_is_marked() -> None:
    one = router("w-1")
    replica = one.fleet.table.get("w-1")
    assert replica is not None
    one.fleet.table.set_coefficients(replica, worker_pb2.StepModel(coefficients={"tokens": 1.0}))
    answer = await one.route()
    assert (answer.ttft_infeasible, answer.queue_deadline_ms) == (True, 5000)


async def test_own_decisions_spread_before_any_load_report_comes() -> None:
    one = router("w-1", "w-2")
    picks = [(await one.route()).replica.id for _ in range(10)]
    assert sorted(picks) == ["w-1"] * 5 + ["w-2"] * 5


async def test_an_outcome_releases_its_load_once() -> None:
    """B91."""
    one = router("w-1")
    first, second = await one.route(), await one.route()
    for _ in range(3):
        await one.report(first.decision_id)
    assert one.fleet.in_flight.num_open("w-1") == 1
    await one.report(second.decision_id, "lost", "worker_lost")
    await one.report("of another router")
    assert one.fleet.in_flight.num_open("w-1") == 0


async def test_a_thousand_attempts_that_end_in_any_way_leave_nothing() -> None:
    """B91: 1,000 requests, 30 % of them killed in some phase."""
    one, draws = router("w-1", "w-2", "w-3"), random.Random(7)
    open_ids = []
    for _ in range(1000):
        open_ids.append((await one.route()).decision_id)
        if draws.random() < 0.7:
            await one.report(open_ids.pop(draws.randrange(len(open_ids))), "completed")
        elif draws.random() < 0.5:
            await one.report(open_ids.pop(), "cancelled", "client")
    for decision_id in open_ids:
        await one.report(decision_id, "failed", "deadline")
    assert len(one.fleet.in_flight) == 0


async def test_five_lost_attempts_take_a_replica_out_and_one_report_counts_once() -> None:
    one = router("w-1", "w-2")
    lost = 0
    while lost < 4:
        answer = await one.route()
        if answer.replica.id == "w-1":
            lost += 1
            for _ in range(5):
                await one.report(answer.decision_id, "lost", "worker_lost")
    replica = one.fleet.table.get("w-1")
    assert replica is not None
    assert replica.breaker.num_faults == 4
    while replica.breaker.open_until is None:
        answer = await one.route()
        await one.report(answer.decision_id, "lost" if answer.replica.id == "w-1" else "completed")
    assert {(await one.route()).replica.id for _ in range(10)} == {"w-2"}


async def test_fifty_client_errors_leave_a_single_replica_in_service() -> None:
    """B78."""
    one = router("w-1")
    for _ in range(50):
        await one.report((await one.route()).decision_id, "refused", "prompt_exceeds_capacity")
    assert (await one.route()).replica.id == "w-1"


async def test_an_outcome_of_an_old_epoch_says_nothing_about_the_new_one() -> None:
    one = router("w-1")
    answers = [await one.route() for _ in range(5)]
    one.fleet.say_ready("w-1", epoch="e2")
    for answer in answers:
        await one.report(answer.decision_id, "lost", "worker_lost")
    assert (await one.route()).replica.epoch == "e2"


async def test_excluded_replicas_are_not_picked_again() -> None:
    one = router("w-1", "w-2")
    assert {(await one.route(excluded=["w-1"])).replica.id for _ in range(10)} == {"w-2"}


async def test_a_decision_can_be_explained_as_long_as_it_is_kept() -> None:
    one = Router(Fleet(time.monotonic), num_explained=2)
    one.fleet.ready("w-1", "w-2")
    first = await one.route(attempt=2, excluded=["w-1"], gateway_id="g")
    told = await one.explain(first.decision_id)
    assert (told.response_id, told.attempt, told.gateway_id, told.why) == ("r", 2, "g", first.why)
    assert {(c.replica.id, c.picked, bool(c.filtered)) for c in told.candidates} == {
        *(("w-1", False, True), ("w-2", True, False)),
    }
    assert abs(told.decided_at_ms / 1000 - time.time()) < 60
    await one.route()
    await one.route()
    with pytest.raises(InvalidRequest):
        await one.explain(first.decision_id)


async def test_a_chain_that_is_cut_is_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        await router("w-1").route(chain=bytes(20))
    assert caught.value.field == "chain"


@pytest.mark.parametrize("field", ["model", "response_id"])
async def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await router("w-1").route(**{field: ""})
    assert caught.value.field == field


async def test_an_unknown_outcome_is_refused_and_nothing_of_the_report_counts() -> None:
    one = router("w-1")
    answer = await one.route()
    rows = [
        routing_pb2.AttemptOutcome(decision_id=answer.decision_id, outcome="completed"),
        routing_pb2.AttemptOutcome(decision_id="x", outcome="exploded"),
    ]
    with pytest.raises(InvalidRequest):
        await one.servicer.Report(routing_pb2.ReportRequest(outcomes=rows), None)
    assert one.fleet.in_flight.num_open("w-1") == 1


async def test_demand_is_counted_with_all_choices() -> None:
    one = router("w-1")
    await one.route()
    await one.route()
    (row,) = one.demand.take(time.monotonic())
    assert (row.model, row.num_arrivals, row.num_prompt_tokens, row.num_output_bound_tokens) == ("m", 2, 200, 40)
    assert one.demand.take(time.monotonic()) == []
