"""When requests arrive: a rate over time, and how regular or bursty arrivals are around it. Knows no lengths.

A renewal process of rate one runs in operational time and is mapped to the clock by the inverse of the cumulative rate
(time rescaling), so that a rate may change within a gap. cv 1 is Poisson, 0 is a metronome, above 1 is bursty (gamma).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Phase:
    """`for_s` seconds in which the rate runs straight from `rps` to `to_rps` requests per second."""

    for_s: float
    rps: float
    to_rps: float

    @property
    def num_expected(self) -> float:
        """Requests in it, on average."""
        return self.for_s * (self.rps + self.to_rps) / 2

    def time_at(self, num_arrived: float) -> float:
        """Seconds into the phase at which that many have arrived on average."""
        slope = (self.to_rps - self.rps) / self.for_s
        if abs(slope) < 1e-12:
            return num_arrived / self.rps
        # rps t + slope t^2 / 2 = n, in the form that does not cancel
        root = math.sqrt(max(0.0, self.rps**2 + 2 * slope * num_arrived))
        return 2 * num_arrived / (self.rps + root)


def arrival_times(phases: Sequence[Phase], cv: float, rng: Random) -> Iterator[float]:
    """Times in seconds from the start, rising, until the last phase ends."""
    start_s, start_count, count = 0.0, 0.0, _gap(cv, rng)
    for phase in phases:
        end_count = start_count + phase.num_expected
        while count < end_count:
            yield start_s + phase.time_at(count - start_count)
            count += _gap(cv, rng)
        start_s, start_count = start_s + phase.for_s, end_count


def rate_at(phases: Sequence[Phase], at_s: float) -> float:
    """The rate at a time; 0 outside."""
    start_s = 0.0
    for phase in phases:
        if start_s <= at_s < start_s + phase.for_s:
            return phase.rps + (phase.to_rps - phase.rps) * (at_s - start_s) / phase.for_s
        start_s += phase.for_s
    return 0.0


def _gap(cv: float, rng: Random) -> float:
    """One gap of mean one."""
    if cv == 0:
        return 1.0
    if cv == 1:
        return rng.expovariate(1.0)
    shape = 1 / cv**2
    return rng.gammavariate(shape, 1 / shape)
