"""A pool as a fluid: what arrives beyond what its ready replicas carry misses its budget, everything else meets it.

Production's autoscaler and forecaster on arrivals second by second, a day in seconds: coarse enough to try settings on
many days, where the simulator would take a day for one. Knows no request.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from headrace_controlplane.autoscale import Demand, Picture, ScalePolicy, ScaleState, Seen, decide
from headrace_sim.scaling import Forecaster

_WINDOW_S = 10
_READY = Seen("ready")


@dataclass(frozen=True)
class Course:
    """What a pool came to: the share of requests in time, and the seconds of its replicas from their starts."""

    attainment: float
    replica_s: float


def arrivals(rates: Sequence[float], step_s: int, seed: int) -> list[float]:
    """Requests of each second: Poisson, as its normal limit, with the spread of requests' tokens."""
    rng = Random(f"fluid/{seed}")
    return [max(0.0, rng.gauss(rate, 1.2 * math.sqrt(rate))) for rate in rates for _ in range(step_s)]


def run(
    policy: ScalePolicy, arrived: Sequence[float], capacity: float, start_up_s: int, forecasts: Sequence[float | None]
) -> Course:
    """`capacity` is that of a replica, in requests per second; `forecasts` has what was said at each second."""
    state = ScaleState(max(1, math.ceil(arrived[0] / (capacity * policy.utilization))) + policy.warm_reserve)
    num_ready, starting, recent = state.desired, deque[int](), deque[float](maxlen=_WINDOW_S)
    missed = replica_s = 0.0
    for second, load in enumerate(arrived):
        recent.append(load)
        while starting and second - starting[0] >= start_up_s:
            starting.popleft()
            num_ready += 1
        seen = [_READY] * num_ready + [Seen("starting", second - at) for at in starting]
        demand = Demand(second, sum(recent) / len(recent))
        state = decide(policy, Picture(second, demand, seen, start_up_s, capacity, forecasts[second]), state).state
        while num_ready + len(starting) < state.desired:
            starting.append(second)
        while num_ready + len(starting) > state.desired:
            if starting:
                starting.pop()
            else:
                num_ready -= 1
        replica_s += num_ready + len(starting)
        # A queue of some seconds evens out what single seconds bring.
        missed += max(0.0, demand.load - num_ready * capacity)
    return Course(1 - missed / sum(arrived), replica_s)


def forecast(forecaster: Forecaster, arrived: Sequence[float], start_up_s: int) -> list[float | None]:
    """What a forecaster says at each second of a course."""
    said = []
    for second, load in enumerate(arrived):
        forecaster.note(second, load)
        said.append(forecaster.quantile(start_up_s))
    return said


def clairvoyant(rates: Sequence[float], step_s: int, full: float, start_up_s: int) -> float:
    """Replica seconds of a scaler that knows the rates; `full` is the rate that one replica is loaded to."""
    needs = [math.ceil(rate / full - 1e-9) for rate in rates]
    total = 0.0
    for index, need in enumerate(needs):
        following = needs[index + 1] if index + 1 < len(needs) else need
        total += need * step_s + max(0, following - need) * start_up_s
    return total
