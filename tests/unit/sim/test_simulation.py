"""A simulated fleet: everything adds up whatever fails, limits bind, and what was written down happens."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_sim.assembly import Options
from headrace_sim.errors import SimulationError
from headrace_sim.page import to_html
from headrace_sim.report import to_json, to_table
from headrace_sim.simulation import Outcome, Simulation
from headrace_workload.arrival import Arrival, Segment
from headrace_workload.generate import generate
from headrace_workload.spec import read_workload
from tests.unit.sim.fleets import POOL, fleet_file, requests

faults = st.fixed_dictionaries(
    {
        "at_s": st.floats(0, 8),
        "kind": st.sampled_from(["kill", "drain", "slow", "blind"]),
        "count": st.integers(1, 3),
        "for_s": st.floats(0, 10),
    }
)


def simulate(value: dict[str, Any], seed: int = 0, options: Options | None = None, **fleet: Any) -> Outcome:
    simulation = Simulation(fleet_file(**fleet), options or Options(seed, shares_prefixes=False))
    return simulation.run(generate(read_workload(value), seed))


def burst(count: int, at_s: float = 0.0, num_output: int = 20) -> list[Arrival]:
    return [Arrival(i, at_s, "m", 100, 20, num_output, (Segment(i, 100),)) for i in range(count)]


@settings(max_examples=10, deadline=None)
@given(st.lists(faults, max_size=4), st.floats(1, 20), st.booleans(), st.integers(0, 100))
def test_everything_adds_up_whatever_fails(
    struck: list[dict[str, Any]], rps: float, fast_forward: bool, seed: int
) -> None:
    """`run` raises if requests, tokens or pages do not balance; here also that every request ended."""
    pool = {"min": 2, "start_up_s": 3.0, "num_pages": 300, "max_waiting": 8}
    options = Options(seed, fast_forward, shares_prefixes=False)
    outcome = simulate(requests(rps, 6), seed, options, pool=pool, simulation={"faults": struck})
    books = outcome.books
    assert sum(books.endings.values()) == books.num_arrived
    assert books.num_generated == books.num_billed + books.num_refunded
    assert outcome.depot.num_killed_loading == 0


def test_a_killed_replica_fails_what_had_shown_a_token_and_comes_back() -> None:
    kill = {"at_s": 5, "kind": "kill"}
    outcome = simulate(requests(20, 15), pool={"min": 2, "start_up_s": 2.0}, simulation={"faults": [kill]})
    assert outcome.books.reasons["worker_lost"] > 0
    assert outcome.books.num_refunded > 0
    assert outcome.timeline.ready[-1] == 2
    assert min(outcome.timeline.ready[5:]) == 1


def test_a_slow_replica_is_seen_in_its_gaps() -> None:
    slow = {"at_s": 0, "kind": "slow", "count": 1, "for_s": 100, "factor": 5}
    usual = to_json(simulate(requests(5, 10)))["slo"][0]["inter_token_s"]["p50"]
    slowed = to_json(simulate(requests(5, 10), simulation={"faults": [slow]}))["slo"][0]["inter_token_s"]["p50"]
    assert slowed > 3 * usual


def test_a_tenant_gets_no_more_than_its_limit_and_unused_output_comes_back() -> None:
    limited = {"dev": {"limits": [{"name": "rpm", "capacity": 60}]}}
    outcome = simulate(requests(10, 30), tenants=limited)
    # A bucket of 60 that leaks one a second.
    assert outcome.books.num_accepted == pytest.approx(60 + 30, abs=2)
    assert outcome.books.reasons["rpm"] == outcome.books.num_arrived - outcome.books.num_accepted


def test_cached_prefixes_are_found_by_the_router() -> None:
    value = requests(8, 25, prompt=64, sessions={"turns": 5, "think_s": 2}, prefix={"count": 4, "tokens": 1024})
    aware = simulate(value, options=Options(shares_prefixes=True), pool={"min": 4})
    blind = simulate(value, options=Options(shares_prefixes=True, cache_blind=True), pool={"min": 4})
    share = to_json(aware)["cached_prompt_share"]
    assert share > 0.6
    assert share > to_json(blind)["cached_prompt_share"]


def test_what_cannot_be_served_in_time_is_refused_and_not_late() -> None:
    outcome = simulate(requests(400, 5, prompt=4000, output=10))
    column = outcome.books.columns["m", "chat"]
    assert outcome.books.reasons["queue_deadline"] > 0
    assert max(column.queue_s) <= 1.0 + 1e-6


def scaled(**changes: Any) -> dict[str, Any]:
    scaling = {"utilization": 1.0, "down_after_s": 60, "capacity": 10_000.0, **changes}
    return {"pools": {"p": {"scaling": scaling}}}


def test_b156_from_zero_requests_are_held_until_a_replica_is_ready() -> None:
    fleet = fleet_file({"min": 0, "max": 2, "start_up_s": 60.0, "hold_s": 120, "max_held": 100}, scaled())
    outcome = Simulation(fleet, Options(shares_prefixes=False)).run(burst(101))
    (column,) = outcome.books.columns.values()
    served = [each for each in column.ttft_s if each >= 0]
    assert len(served) == 100
    assert all(60 <= each < 63 for each in served)
    assert outcome.books.reasons == {"no_replica": 1}


def test_b156_what_is_refused_is_not_charged() -> None:
    limited = {"dev": {"limits": [{"name": "tpm", "capacity": 1_000_000}]}}
    fleet = fleet_file({"min": 0, "max": 0, "hold_s": 5}, scaled(), tenants=limited)
    simulation = Simulation(fleet, Options(shares_prefixes=False))
    outcome = simulation.run(burst(3))
    assert outcome.books.reasons == {"no_replica": 3}
    assert simulation.quotas.used("dev", "tpm", simulation.clock.now) == 0


def test_b153_a_burst_shorter_than_a_start_is_one_rise_and_one_fall() -> None:
    phases = [{"for_s": 30, "rps": 3}, {"for_s": 60, "rps": 9}, {"for_s": 200, "rps": 3}]
    value = {**requests(1, 1, prompt=100, output=3, max_output=20), "phases": phases, "cv": 0}
    # 120 declared tokens a request: 3 a second need 1.44 replicas, 9 need 4.32.
    outcome = simulate(value, pool={"min": 2, "max": 10, "start_up_s": 90.0}, simulation=scaled(capacity=250.0))
    wanted = outcome.timeline.wanted
    steps = [later - earlier for earlier, later in itertools.pairwise(wanted) if later != earlier]
    assert sum(each for each in steps if each < 0) == -sum(each for each in steps if each > 0)
    falls = [index for index, each in enumerate(steps) if each < 0]
    assert len(falls) == 1 and falls[0] == len(steps) - 1, "it never rose after it fell"
    assert outcome.depot.num_killed_loading == 0
    assert outcome.depot.num_stops == sum(each for each in steps if each > 0)


def test_pools_of_one_model_share_its_load() -> None:
    """Two pools have as many replicas together as one would have alone."""
    load, wanted = requests(20, 60, prompt=100, output=3, max_output=20), []
    for names in (["p"], ["p", "q"]):
        pools = {name: {**POOL, "min": 1, "max": 40, "start_up_s": 1.0} for name in names}
        simulation = {"pools": {name: scaled(capacity=150.0)["pools"]["p"] for name in names}}
        wanted.append(max(simulate(load, pools=pools, simulation=simulation).timeline.wanted))
    assert wanted[0] >= 16
    assert wanted[1] <= 1.25 * wanted[0]


def test_blind_routers_change_nothing_and_raise_the_alarm() -> None:
    blind = {"at_s": 5, "kind": "blind", "for_s": 20}
    simulation = {**scaled(capacity=100.0), "faults": [blind]}
    outcome = simulate(requests(10, 30), pool={"min": 1, "max": 9}, simulation=simulation)
    alarms = [(at_s, each.desired) for at_s, each in outcome.scaled["p"].decisions if each.alarm]
    assert len({desired for _, desired in alarms}) == 1
    assert all(5 <= at_s < 25 for at_s, _ in alarms)


def test_nodes_bound_what_can_be_placed() -> None:
    nodes = {"nodes": {"count": 1, "devices": 4}}
    outcome = simulate(requests(2, 5), pool={"min": 3, "tp": 2}, simulation=nodes)
    assert max(outcome.timeline.ready) == 2
    assert outcome.depot.num_unplaced > 0


def test_the_report_is_a_table_and_a_page() -> None:
    summary = to_json(simulate(requests(5, 10)))
    assert "m / chat" in to_table(summary)
    page = to_html("a <run>", summary)
    assert page.count("<svg") == 5
    assert "a &lt;run&gt;" in page


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool": {"card": "h900"}}, "h900"),
        ({"pool": {"card": ""}}, "pools.p.card"),
        ({"simulation": {"models": {"x": {}}}}, "no 'x' in the fleet"),
        ({"simulation": {"models": {"m": {"shape": "gpt"}}}}, "simulation.models.m.shape"),
        ({"simulation": {"models": {"m": {"shape": "llama-3.1-70b"}}}}, "no room for KV"),
        ({"simulation": {"faults": [{"at_s": 1, "kind": "melt"}]}}, "simulation.faults"),
    ],
)
def test_a_fleet_that_cannot_be_simulated_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        fleet_file(**changes)


def test_a_workload_that_names_no_model_of_the_fleet_is_refused() -> None:
    with pytest.raises(SimulationError, match="names a model 'other'"):
        simulate(requests(5, 1, model="other"))
