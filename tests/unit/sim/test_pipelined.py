"""A simulated pipeline: known schedules come out by themselves, and the scheduler that fills it is production's."""

import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_sim.assembly import Options
from headrace_sim.clock import Clock
from headrace_sim.closed_loop import ClosedLoop
from headrace_sim.errors import SimulationError
from headrace_sim.hand_offs import HandOffs
from headrace_sim.job import Job
from headrace_sim.pipelined import PipelinedReplica
from headrace_sim.prefix_map import hash_block
from headrace_sim.replica import END_ID, Make
from headrace_sim.report import to_json
from headrace_sim.simulation import Outcome, Simulation
from headrace_sim.stage_timer import FittedStageTimer, Pipeline, StageTimer
from headrace_sim.step_timer import StepTimer
from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.pipeline import PipelineSchedule
from headrace_worker.perf.prediction import ClosedLoop as PlannedLoop
from headrace_worker.perf.prediction import predict_closed_loop
from headrace_worker.perf.step import StepLoad
from headrace_worker.perf.step_model import StepModel
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.request import Request
from headrace_workload.arrival import Arrival
from headrace_workload.generate import generate
from headrace_workload.lengths import Uniform
from headrace_workload.spec import read_workload
from tests.unit.sim.fleets import fleet_file, requests

ROOFLINE = fleet_file({"pp": 3}).pools["p"].roofline
CHUNK = 64


class Fixed:
    """The same seconds in each stage whatever a plan holds."""

    def __init__(self, *stages_s: float) -> None:
        self.given = list(stages_s)

    def stages_s(self, chunks: Sequence[tuple[int, int]], num_decodes: int, num_context_tokens: int) -> list[float]:
        return self.given


class Bench:
    """One replica of given stage times, and what came of the requests that it got."""

    def __init__(self, *stages_s: float, **pipeline: Any) -> None:
        num_stages = len(stages_s)
        end_ids = frozenset({END_ID})
        limits = Limits(
            4096, 1000, end_token_ids=end_ids, caches_prefixes=False, max_chunk_tokens=CHUNK, depth=num_stages
        )
        make = Make(
            limits, StepTimer(ROOFLINE), hash_block, pipeline=Pipeline(Fixed(*stages_s), num_stages, **pipeline)
        )
        self.clock, self.ended = Clock(), list[Job]()
        hand_offs = HandOffs(self.clock, {}, lambda replica_id: None)
        self.replica = PipelinedReplica("r", "p", make, self.clock, self.ended.append, hand_offs)

    def submit(self, num_prompt: int, num_output: int) -> Job:
        arrival = Arrival(0, self.clock.now, "m", num_prompt, num_output, num_output, ())
        handle = len(self.replica.jobs) + len(self.ended) + 1
        job = Job(arrival, "chat", handle=handle, num_left=num_output)
        ids = (5,) * num_prompt
        self.replica.submit(job, Request(handle, str(handle), 1, ids, num_output))
        return job


@pytest.mark.parametrize(("num_stages", "num_chunks"), [(2, 8), (4, 3), (4, 16)])
def test_chunks_of_one_prompt_fill_and_drain_the_stages(num_stages: int, num_chunks: int) -> None:
    """m chunks in p equal stages take m + p - 1 slots, and the bubble is GPipe's."""
    bench = Bench(*[0.5] * num_stages)
    job = bench.submit(num_chunks * CHUNK, 1)
    bench.clock.run()
    schedule = PipelineSchedule(num_chunks, num_stages)
    assert job.first_s == pytest.approx(0.5 * schedule.num_slots)
    assert bench.replica.bubble == pytest.approx(schedule.bubble)
    assert bench.ended == [job] and job.ending == "incomplete"


def test_a_chunk_that_meets_a_busy_stage_waits() -> None:
    bench = Bench(0.1, 1.0, 0.2)
    job = bench.submit(5 * CHUNK, 1)
    bench.clock.run()
    assert job.first_s == pytest.approx(0.1 + 5 * 1.0 + 0.2)


def test_decodes_share_the_stages_and_each_token_takes_them_all() -> None:
    """Four sequences, two plans of two in flight: a round of both takes twice the slowest stage."""
    bench = Bench(0.1, 0.3)
    jobs = [bench.submit(8, 200) for _ in range(4)]
    bench.clock.run()
    for job in jobs:
        assert job.inter_token_s == pytest.approx(2 * 0.3, rel=0.02)
    num_tokens = sum(job.num_generated for job in jobs)
    assert num_tokens / bench.clock.now == pytest.approx(2 / 0.3, rel=0.03), "a plan of two leaves every 0.3 s"
    assert bench.replica.bubble == pytest.approx(1 - (0.1 + 0.3) / (2 * 0.3), abs=0.02)


def test_one_sequence_has_one_plan_in_flight() -> None:
    bench = Bench(0.1, 0.3)
    job = bench.submit(8, 20)
    bench.clock.run()
    assert [job.first_s, job.inter_token_s] == pytest.approx([0.4, 0.4])
    assert bench.replica.bubble == pytest.approx(0.5)


def test_who_comes_waits_for_the_oldest_plan() -> None:
    """The loop waits for the oldest result: a stage that is free before is not filled."""
    bench = Bench(0.1, 0.3)
    bench.submit(8, 2)
    late: list[Job] = []
    bench.clock.at(0.15, lambda: late.append(bench.submit(8, 1)))
    bench.clock.run()
    # The decode of the first comes first into the stages, at 0.4; the prompt beside it in the same plan.
    assert late[0].first_s == pytest.approx(0.8)


def test_a_host_that_computes_hears_of_tokens_between_its_plans() -> None:
    """Two prompts are launched at 0.4: the host is busy with the second until 1.0, the first was done at 0.8."""
    for host_computes, first_s in ((False, 0.8), (True, 1.0)):
        bench = Bench(0.3, 0.1, host_computes=host_computes)
        bench.submit(CHUNK, 1)
        job = bench.submit(CHUNK, 1)
        bench.submit(CHUNK, 1)
        bench.clock.run()
        assert job.first_s == pytest.approx(first_s)


def test_the_host_plans_between_a_result_and_the_next_plan() -> None:
    """Six chunks in two stages of 0.3 s are three rounds; 0.05 s of each the first stage waits for its host."""
    bench = Bench(0.3, 0.3, host_s=0.05)
    job = bench.submit(6 * CHUNK, 1)
    bench.clock.run()
    assert job.first_s == pytest.approx(3 * (0.05 + 2 * 0.3) + 0.3)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 2048), st.integers(0, 8192)), max_size=3),
    st.integers(0, 256),
    st.integers(1, 4000),
)
def test_the_stages_take_what_the_roofline_says(chunks: list[tuple[int, int]], decodes: int, context: int) -> None:
    if not chunks and not decodes:
        return
    load = StepLoad(tuple(Prefill(*chunk) for chunk in chunks), decodes, decodes * context)
    found = StageTimer(ROOFLINE).stages_s(chunks, decodes, decodes * context)
    assert found == pytest.approx(list(ROOFLINE.stage_times_s(load)), rel=0.01)
    assert sum(found) == pytest.approx(StepTimer(ROOFLINE).step_s(chunks, decodes, decodes * context))


def test_fitted_steps_are_shared_as_the_roofline_shares_them() -> None:
    stages, model = StageTimer(ROOFLINE), StepModel((0.01, 1e-5, 0.0, 0.0, 0.0, 0.0), 256)
    whole, shares = FittedStageTimer(model, stages).stages_s([(512, 0)], 0, 0), stages.stages_s([(512, 0)], 0, 0)
    assert sum(whole) == pytest.approx(0.01 + 512e-5)
    assert whole[0] / sum(whole) == pytest.approx(shares[0] / sum(shares))


def run(pp: int, rps: float = 12.0, seed: int = 1, fast_forward: bool = True, **simulation: Any) -> Outcome:
    fleet = fleet_file({"min": 2, "pp": pp}, simulation)
    workload = read_workload(requests(rps, 6))
    return Simulation(fleet, Options(seed, fast_forward, shares_prefixes=False)).run(generate(workload, seed))


def test_a_pipeline_is_simulated_exactly_also_where_others_are_not() -> None:
    runs = run(2), run(2, fast_forward=False), run(2, seed=2)
    fast, exact, other = map(to_json, runs)
    assert fast == exact
    assert fast != other


def test_a_killed_pipeline_loses_what_was_in_flight_and_the_books_balance() -> None:
    outcome = run(2, 40.0, faults=[{"at_s": 3, "kind": "kill", "count": 1}])
    assert outcome.books.endings["failed"] > 0
    assert sum(outcome.books.endings.values()) == outcome.books.num_arrived


def test_overlap_is_refused_as_production_refuses_it() -> None:
    with pytest.raises(SimulationError, match=r"pools\.p\.overlap: is not there for a pipeline \(pp is 2\)"):
        fleet_file({"pp": 2}, {"pools": {"p": {"overlap": True}}})


@pytest.mark.parametrize("pp", [2, 4])
def test_a_plan_of_means_says_what_the_simulation_says(pp: int) -> None:
    """Closed loops of equal prompts; the means of one stage are no nearer."""
    pool = {"pp": pp, "min": 1, "max_waiting": 4096, "max_batch_tokens": 2048}
    fleet = fleet_file(pool, classes={"chat": {"ttft_ms": 10**6, "max_queue_ms": 10**6, "default": True}})
    loop = ClosedLoop("m", Uniform(3000, 3000), Uniform(100, 140), num_users=16, num_requests=64)
    column = Simulation(fleet, Options(shares_prefixes=False)).run(loop.first(), loop.after).books.columns["m", "chat"]
    planned = predict_closed_loop(fleet.pools["p"].roofline, PlannedLoop(3000, 120, 16), 128, 1024)
    # Users who all begin at once wait for one another; that is over after the first requests.
    ttft_s, tpot_s = (statistics.fmean(each[16:]) for each in (column.ttft_s, column.inter_token_s))
    assert planned.tpot_s == pytest.approx(tpot_s, rel=0.1)
    assert planned.ttft_s == pytest.approx(ttft_s, rel=0.25)
    assert planned.ttft_s + 119 * planned.tpot_s == pytest.approx(ttft_s + 119 * tpot_s, rel=0.07)
