"""The comparison of scalers: who knows the rates, a pool as a fluid, and the report with its drawings."""

import pytest

from headrace_controlplane.autoscale import ScalePolicy
from headrace_sim.capacity import Capacity
from headrace_sim.experiments import fluid, scaling
from headrace_sim.experiments.table import Report
from headrace_worker.perf.drawing import Line
from headrace_workload.arrivals import Phase

PHASES = (Phase(600, 8, 8), Phase(600, 30, 30), Phase(600, 4, 4))


def test_who_knows_the_rates_starts_in_time_and_keeps_nothing() -> None:
    schedule = scaling.Schedule(PHASES, full_rps=4.0)
    start_s = 600 - scaling.START_UP_S
    assert [schedule(at_s) for at_s in (0, start_s - 1, start_s, 600, 1199)] == [2, 2, 8, 8, 8]
    assert [schedule(at_s) for at_s in (1200, 1799, 5000)] == [1, 1, 1]


def test_replica_seconds_of_who_knows_the_rates_are_those_of_its_schedule() -> None:
    schedule = scaling.Schedule(PHASES, full_rps=4.0)
    rates = [phase.rps for phase in PHASES]
    counted = sum(schedule(float(second)) for second in range(1800))
    assert fluid.clairvoyant(rates, 600, 4.0, int(scaling.START_UP_S)) == counted


def test_a_fluid_misses_what_ready_replicas_do_not_carry() -> None:
    policy = ScalePolicy(1, 100, utilization=0.8, down_after_s=60)
    steady = fluid.run(policy, [80.0] * 600, 10.0, 120, [None] * 600)
    assert steady.attainment == 1 and steady.replica_s == 10 * 600
    step = fluid.run(policy, [80.0] * 300 + [200.0] * 600, 10.0, 120, [None] * 900)
    # A hundred a second until those are ready that were asked for as the mean of ten seconds rose.
    missed = (1 - step.attainment) * (80 * 300 + 200 * 600)
    assert 100 * 110 < missed < 100 * 132
    told = fluid.run(policy, [80.0] * 300 + [200.0] * 600, 10.0, 120, [None] * 170 + [200.0] * 730)
    assert told.attainment == 1


@pytest.mark.parametrize("policy", [scaling.CLAIRVOYANT, scaling.REACTIVE])
def test_a_policy_runs_on_the_burst(policy: scaling.Policy) -> None:
    found = scaling._try(scaling.burst(0.01), policy, Capacity(0.9, 2700.0), 1)
    assert max(found.timeline["wanted"]) >= 5
    assert found.timeline["wanted"][-1] < 5
    assert found.attainment > 0.5
    if policy.knows:
        assert found.attainment > 0.97


def test_a_report_has_its_plots_beside_it() -> None:
    report = Report("A", "b", ("c",), [("d",)], "e", [("Replicas", [Line("wanted", [0, 1], [1, 2])])])
    assert "![Replicas](name-1.svg)" in report.to_markdown("name")
    (drawing,) = report.drawings("name").values()
    assert drawing.startswith('<svg xmlns="http://www.w3.org/2000/svg"') and drawing.endswith("</svg>\n")
