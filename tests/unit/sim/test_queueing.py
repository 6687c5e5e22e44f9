"""Queueing sanity: what is known in closed form comes out of the event core and of a replica that serves one by one."""

from collections import deque
from random import Random

import pytest

from headrace_sim.assembly import Options
from headrace_sim.clock import Clock
from headrace_sim.simulation import Simulation
from headrace_workload.arrivals import Phase, arrival_times
from headrace_workload.generate import generate
from headrace_workload.spec import read_workload
from tests.unit.sim.fleets import fleet_file, requests


class Server:
    """One server, first come first served, on the event core."""

    def __init__(self, clock: Clock, service_s: list[float]) -> None:
        self.clock, self.service_s = clock, iter(service_s)
        self.waiting: deque[float] = deque()
        self.busy = False
        self.waits_s: list[float] = []

    def arrive(self) -> None:
        self.waiting.append(self.clock.now)
        if not self.busy:
            self.serve()

    def serve(self) -> None:
        self.busy = bool(self.waiting)
        if self.busy:
            self.waits_s.append(self.clock.now - self.waiting.popleft())
            self.clock.after(next(self.service_s), self.serve)


def mean_wait_s(rate: float, service_s: list[float], seed: int) -> float:
    clock = Clock()
    server = Server(clock, service_s)
    duration_s = len(service_s) / rate
    times = list(arrival_times((Phase(duration_s, rate, rate),), 1.0, Random(seed)))[: len(service_s)]
    for at_s in times:
        clock.at(at_s, server.arrive)
    clock.run()
    return sum(server.waits_s) / len(server.waits_s)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_mm1_waits_as_long_as_its_formula_says(load: float) -> None:
    rng = Random(7)
    service_s = [rng.expovariate(1.0) for _ in range(60_000)]
    assert mean_wait_s(load, service_s, seed=3) == pytest.approx(load / (1 - load), rel=0.1)


@pytest.mark.parametrize(("name", "second_moment"), [("constant", 1.0), ("two-point", 1.64)])
def test_mg1_waits_as_pollaczek_and_khinchine_say(name: str, second_moment: float) -> None:
    rng, load = Random(8), 0.7
    service_s = [1.0 if name == "constant" else rng.choice([0.2, 1.8]) for _ in range(60_000)]
    assert mean_wait_s(load, service_s, seed=4) == pytest.approx(load * second_moment / (2 * (1 - load)), rel=0.08)


def test_a_replica_that_serves_one_by_one_is_an_mg1_queue() -> None:
    """Production's scheduler with room for one: what requests wait is what the formula says of their service times."""
    slow = {"chat": {"ttft_ms": 3_600_000, "max_queue_ms": 3_600_000, "default": True}}
    fleet = fleet_file({"max_running": 1, "max_waiting": 10_000}, classes=slow)
    value = requests(3.0, 600, prompt=100, output={"uniform": [10, 50]}, max_output=50)
    simulation = Simulation(fleet, Options(shares_prefixes=False))
    outcome = simulation.run(generate(read_workload(value), 5))
    column = outcome.books.columns["m", "chat"]
    served = [ttft - queue for ttft, queue in zip(column.ttft_s, column.queue_s, strict=True)]
    decode_s = outcome.depot.of("p")[0].busy_s - sum(served)
    lengths = list(range(10, 51))
    per_token_s = decode_s / (outcome.books.num_generated - len(served))
    prefill_s = sum(served) / len(served)
    service_s = [prefill_s + per_token_s * (length - 1) for length in lengths]
    mean = sum(service_s) / len(service_s)
    second = sum(each**2 for each in service_s) / len(service_s)
    load = 3.0 * mean
    assert 0.3 < load < 0.9
    expected_s = 3.0 * second / (2 * (1 - load))
    assert sum(column.queue_s) / len(column.queue_s) == pytest.approx(expected_s, rel=0.2)
