"""A simulated replica: its steps are the roofline's, and fast-forward changes nothing that can be seen."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_sim.assembly import Options
from headrace_sim.report import to_json
from headrace_sim.simulation import Outcome, Simulation
from headrace_sim.step_timer import StepTimer
from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.step import StepLoad
from headrace_workload.generate import generate
from headrace_workload.spec import read_workload
from tests.unit.sim.fleets import fleet_file, requests

ROOFLINE = fleet_file().pools["p"].roofline


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 2048), st.integers(0, 8192)), max_size=3),
    st.integers(0, 256),
    st.integers(1, 4000),
)
def test_the_timer_says_what_the_roofline_says(chunks: list[tuple[int, int]], decodes: int, context: int) -> None:
    if not chunks and not decodes:
        return
    load = StepLoad(tuple(Prefill(*chunk) for chunk in chunks), decodes, decodes * context)
    found = StepTimer(ROOFLINE).step_s(chunks, decodes, decodes * context)
    assert found == pytest.approx(ROOFLINE.step_time_s(load), rel=0.01)


def run(fast_forward: bool, rps: float = 12.0, seed: int = 1, for_s: float = 12) -> Outcome:
    fleet = fleet_file({"min": 2})
    workload = read_workload(requests(rps, for_s))
    return Simulation(fleet, Options(seed, fast_forward, shares_prefixes=False)).run(generate(workload, seed))


def test_fast_forward_agrees_with_every_step_planned() -> None:
    exact, fast = run(False), run(True)
    assert fast.num_steps == pytest.approx(exact.num_steps, rel=0.02)
    assert fast.books.num_generated == exact.books.num_generated
    assert fast.books.endings == exact.books.endings
    for place, column in exact.books.columns.items():
        other = fast.books.columns[place]
        for name in ("ttft_s", "inter_token_s", "queue_s"):
            mine, theirs = (sum(getattr(each, name)) / len(each.met) for each in (column, other))
            assert theirs == pytest.approx(mine, rel=0.02, abs=1e-4), name


@pytest.mark.parametrize("fast_forward", [True, False])
def test_the_same_seed_is_the_same_run(fast_forward: bool) -> None:
    first, again, other = (to_json(run(fast_forward, 6, seed, 4)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
