"""Policies that exist only to be compared with, closed loops, and the capacity of one replica."""

import pytest

from headrace_sim.assembly import Options
from headrace_sim.capacity import search_capacity
from headrace_sim.closed_loop import ClosedLoop
from headrace_sim.experiments.table import Report
from headrace_sim.job import Job
from headrace_sim.simulation import Outcome, Simulation
from headrace_workload.arrival import Arrival, Segment
from headrace_workload.generate import generate
from headrace_workload.lengths import Fixed, Uniform
from headrace_workload.spec import read_workload
from tests.unit.sim.fleets import fleet_file, requests

PATIENT = {"chat": {"ttft_ms": 600_000, "max_queue_ms": 600_000, "default": True}}


def closed(options: Options, users: int = 8, count: int = 40) -> Outcome:
    loop = ClosedLoop("m", Fixed(200), Uniform(5, 60), users, count)
    return Simulation(fleet_file(classes=PATIENT), options).run(loop.first(), loop.after)


def test_a_closed_loop_has_its_users_and_no_more() -> None:
    outcome = closed(Options(shares_prefixes=False))
    assert outcome.books.num_arrived == 40
    assert outcome.books.endings == {"incomplete": 40}
    assert max(outcome.timeline.running) <= 8


def test_a_static_batch_takes_longer_for_the_same_work() -> None:
    continuous, static = (closed(Options(shares_prefixes=False, static_batching=each)) for each in (False, True))
    assert static.books.num_generated == continuous.books.num_generated
    assert static.duration_s > 1.3 * continuous.duration_s


def test_only_queue_first_serves_what_is_late_already() -> None:
    tight = {"chat": {"ttft_ms": 500, "max_queue_ms": 2000, "delivery_reserve_ms": 0, "default": True}}
    late = []
    for queue_first in (False, True):
        workload = read_workload(requests(30, 3, prompt=4000, output=5, max_output=5))
        options = Options(shares_prefixes=False, queue_first=queue_first)
        outcome = Simulation(fleet_file(classes=tight), options).run(generate(workload, 1))
        late.append(sum(each > 0.5 for each in outcome.books.columns["m", "chat"].ttft_s))
    assert late[1] > 2 * late[0]


def test_the_capacity_found_is_the_edge_of_the_target() -> None:
    fleet = fleet_file(
        {"page_tokens": 256}, classes={"chat": {"ttft_ms": 300, "max_queue_ms": 300, "default": True, "target": 0.95}}
    )
    workload = read_workload(requests(1, 1, prompt=2000, output=20, max_output=100))
    found = search_capacity(fleet, "p", workload, for_s=3, steps=3)
    assert found.tokens_per_s == pytest.approx(found.requests_per_s * 2100)
    shares = []
    for rps in (0.8 * found.requests_per_s, 1.5 * found.requests_per_s):
        load = read_workload(requests(rps, 3, prompt=2000, output=20, max_output=100))
        column = Simulation(fleet, Options(shares_prefixes=False)).run(generate(load, 1)).books.columns["m", "chat"]
        shares.append(sum(column.met) / len(column.met))
    assert shares[0] >= 0.9 > shares[1]


def test_the_capacity_found_counts_what_the_autoscaler_counts() -> None:
    """A prompt holds what was said before: 100 new tokens after a prefix of 1,000 are 1,100 and more."""
    fleet = fleet_file({"page_tokens": 256})
    kind = {"prompt": 100, "output": 20, "max_output": 100, "prefix": {"count": 2, "tokens": 1000}}
    found = search_capacity(fleet, "p", read_workload(requests(1, 1, **kind)), for_s=1, steps=1)
    assert found.tokens_per_s == pytest.approx(found.requests_per_s * 1200)
    talks = read_workload(requests(1, 1, **kind, sessions={"turns": 4, "think_s": 10}))
    longer = search_capacity(fleet, "p", talks, for_s=1, steps=1)
    assert longer.tokens_per_s > 1.15 * longer.requests_per_s * 1200


def test_a_report_is_markdown_with_its_command() -> None:
    text = Report("A or B", "What was run.", ("a", "b"), [("1", "2")], "A wins.").to_markdown("a-or-b")
    assert "| a | b |\n|---|---|\n| 1 | 2 |" in text
    assert "python -m headrace_sim.experiments a-or-b" in text


def test_who_comes_while_a_step_runs_waits_for_one_more_where_steps_are_planned_ahead() -> None:
    """One long stream, and later one short request: its first token comes a step of that stream later."""
    firsts = []
    for overlap in (False, True):
        fleet = fleet_file(classes=PATIENT, simulation={"pools": {"p": {"overlap": overlap, "host_ms": 20}}})
        for fast_forward in (False, True):
            arrivals = [
                Arrival(number, at_s, "m", 100, 200, 150, (Segment(number, 100),))
                for number, at_s in ((0, 0.0), (1, 1.0))
            ]
            found: list[Job] = []
            options = Options(fast_forward=fast_forward, shares_prefixes=False)
            Simulation(fleet, options).run(arrivals, found.append)
            firsts.append(next(job.ttft_s or 0.0 for job in found if job.arrival.number == 1))
    exact, fast, ahead, ahead_fast = firsts
    assert fast == pytest.approx(exact, abs=1e-6)
    assert ahead_fast == pytest.approx(ahead, abs=1e-6)
    assert ahead - exact == pytest.approx(0.027, abs=0.003)


@pytest.mark.parametrize("fast_forward", [False, True])
def test_optimism_admits_on_what_is_used_and_computes_again_what_it_preempts(fast_forward: bool) -> None:
    """Room for three whole futures of four: all start at once, one makes room later, and every token comes once."""
    arrivals = [Arrival(number, 0.0, "m", 128, 500, 400, (Segment(number, 128),)) for number in range(4)]
    ready = []
    for optimistic in (False, True):
        options = Options(fast_forward=fast_forward, shares_prefixes=False, optimistic=optimistic)
        simulation = Simulation(fleet_file({"num_pages": 28, "page_tokens": 64}, classes=PATIENT), options)
        outcome = simulation.run(arrivals)
        assert outcome.books.num_generated == 4 * 400
        ready.append(sum(each < 1.0 for each in outcome.books.columns["m", "chat"].ttft_s))
        preempted = outcome.depot.of("p")[0].scheduler.running.num_preempted
        assert (preempted > 0) == optimistic
    assert ready == [2, 4]


def test_a_measured_step_model_takes_the_place_of_the_roofline() -> None:
    measured = {"step": 0.01, "tokens": 0.001, "decode_rows": 0.002, "knee_tokens": 64, "tokens_beyond_knee": 0.003}
    fleet = fleet_file(simulation={"pools": {"p": {"step_model": measured}}}, classes=PATIENT)
    arrival = Arrival(0, 0.0, "m", 100, 20, 11, (Segment(0, 100),))
    found: list[Job] = []
    Simulation(fleet, Options(shares_prefixes=False)).run([arrival], found.append)
    assert found[0].ttft_s == pytest.approx(0.01 + 100 * 0.001 + 36 * 0.003)
    assert found[0].inter_token_s == pytest.approx(0.01 + 0.001 + 0.002)
