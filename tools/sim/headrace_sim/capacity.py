"""What one replica of a pool can carry within its budgets: found by running it, not by a formula.

Bisection over the arrival rate of a workload's own mix at one replica, until attainment falls below the target of its
class. Deterministic by seed.
"""

from dataclasses import dataclass, replace
from itertools import islice

from headrace_sim.assembly import Options
from headrace_sim.books import Column
from headrace_sim.errors import SimulationError
from headrace_sim.fleet import SimFleet, SimulationSection
from headrace_sim.simulation import Simulation
from headrace_workload.arrivals import Phase
from headrace_workload.generate import generate
from headrace_workload.lengths import mean
from headrace_workload.spec import Kind, Workload

_FIRST_RPS = 1.0
_MOST_RPS = 4096.0
# Of which a mean length is taken where no formula has it.
_MEAN_REQUESTS = 10_000


@dataclass(frozen=True)
class Capacity:
    """Requests and declared tokens per second of one replica."""

    requests_per_s: float
    tokens_per_s: float


def search_capacity(
    fleet: SimFleet,
    pool: str,
    workload: Workload,
    seed: int = 0,
    for_s: float = 60.0,
    steps: int = 7,
    num_replicas: int = 1,
) -> Capacity:
    """The highest rate, within one part in 2**steps, at which one replica of `pool` meets its classes' targets.

    Several replicas carry more each than one does alone, for they share their queues through the router.
    """
    alone = _alone(fleet, pool, num_replicas)
    model = fleet.pools[pool].settings.model
    kinds = tuple(kind for kind in workload.kinds if kind.model in (model, ""))
    if not kinds:
        words = f"the workload never asks for {model!r}; give simulation.pools.{pool}.scaling.capacity"
        raise SimulationError(f"pools.{pool}: {words}")
    low, high = 0.0, _FIRST_RPS
    while high < _MOST_RPS and _meets(alone, kinds, high * num_replicas, seed, for_s):
        low, high = high, high * 2
    for _ in range(steps):
        middle = (low + high) / 2
        if _meets(alone, kinds, middle * num_replicas, seed, for_s):
            low = middle
        else:
            high = middle
    return Capacity(low, _tokens_per_s(kinds, low, seed))


def _alone(fleet: SimFleet, pool: str, num_replicas: int) -> SimFleet:
    """So many replicas, nothing else, no faults, no scaling."""
    found = fleet.pools[pool]
    settings = replace(found.settings, min=num_replicas, max=num_replicas, warm_reserve=0)
    single = replace(found, settings=settings, section=replace(found.section, scaling=None, initial=num_replicas))
    return SimFleet(fleet.fleet, {pool: single}, SimulationSection())


def _meets(fleet: SimFleet, kinds: tuple[Kind, ...], rps: float, seed: int, for_s: float) -> bool:
    workload = _flat(kinds, rps, for_s)
    shares = any(kind.sessions or kind.prefix for kind in kinds)
    outcome = Simulation(fleet, Options(seed, shares_prefixes=shares)).run(generate(workload, seed))
    classes = fleet.fleet.classes
    return all(_share(column) >= classes[name].target for (_, name), column in outcome.books.columns.items())


def _share(column: Column) -> float:
    return sum(column.met) / len(column.met) if column.met else 1.0


def _flat(kinds: tuple[Kind, ...], rps: float, for_s: float) -> Workload:
    return Workload("capacity", (Phase(for_s, rps, rps),), kinds)


def _tokens_per_s(kinds: tuple[Kind, ...], rps: float, seed: int) -> float:
    """Declared tokens that arrive at this rate, as the autoscaler counts them: prefixes and earlier turns are in it."""
    if not any(kind.sessions or kind.prefix for kind in kinds):
        weights = sum(kind.weight for kind in kinds)
        return rps * sum(kind.weight * (mean(kind.prompt) + kind.max_output) for kind in kinds) / weights
    drawn = islice(generate(_flat(kinds, 1.0, _MEAN_REQUESTS), seed), _MEAN_REQUESTS)
    tokens = [arrival.num_prompt + arrival.max_output for arrival in drawn]
    return rps * sum(tokens) / len(tokens)
