"""How a live run is held against the simulator: what is compared, and what the simulator is told."""

import pytest

from benchmarks.live import CHECKED, Costs, Seen, compare, simulate, sized, spreads
from headrace_worker.perf.step_model import StepModel
from headrace_workload.generate import generate
from headrace_workload.spec import read_workload


def seen(ttft_s: float, token_s: float = 0.1, whole_s: float = 2.0) -> Seen:
    return Seen(0, 100, 20, ttft_s, token_s, whole_s)


def test_the_worst_quantity_counts_and_repeats_that_disagree_are_told() -> None:
    simulated = spreads([seen(1.1, 0.13)])
    runs = [spreads([seen(ttft_s)]) for ttft_s in (0.7, 1.0, 1.05)]
    medians, p90s, apart = compare(simulated, runs)
    assert medians.measured == pytest.approx(0.3) and not medians.ok
    assert p90s.measured == pytest.approx(0.3) and p90s.ok
    assert apart.measured == pytest.approx(0.3) and not apart.ok


def test_the_simulator_is_told_costs_and_arrivals_and_nothing_of_the_runs() -> None:
    arrivals = list(generate(read_workload(CHECKED), 3))[:1]
    counted = {0: Seen(0, 200, 11, 9.0, 9.0, 9.0)}
    costs = Costs(StepModel((0.01, 0.001, 0.0, 0.0, 0.0, 0.0), 256), host_s=0.002, front_s=0.05, num_pages=500)
    (found,) = simulate(costs, [sized(arrivals[0], counted)])
    assert (found.num_prompt, found.num_output) == (200, 11)
    assert found.ttft_s == pytest.approx(0.05 + 0.01 + 200 * 0.001 + 0.002)
    assert found.token_s == pytest.approx(0.01 + 0.001 + 0.002)
    assert found.whole_s == pytest.approx(found.ttft_s + 10 * found.token_s)
