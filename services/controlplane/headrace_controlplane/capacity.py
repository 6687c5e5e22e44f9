"""What one replica of a pool carries, measured while it serves. Pure: the clock is the caller's.

Pages and places that are promised grow with the load, so a pool that is half full carries half of what it could:

    capacity of a replica = load per replica / occupancy

Where requests wait all the time, a pool carries no more than it does, however much arrives: that bounds its capacity
from above. Where some wait for a moment, it is only as full as it says.
An almost empty one says only that its capacity is not small. Knows no router and no card.
"""

from collections import deque
from dataclasses import dataclass

# Readings that are averaged, a second apart: shorter than a change of load matters, longer than one request.
_WINDOW = 10
# Below this occupancy the share of what is promised is too coarse to divide by.
_FLOOR = 0.1
_WEIGHT = 0.1
# A load that changed by less than this share within the window is steady.
_STEADY = 0.3


@dataclass(frozen=True)
class Reading:
    """One second of a pool: how full its ready replicas are, and the load, which is the mean of a window as long."""

    load: float
    arrivals_per_s: float
    num_replicas: int
    occupancy: float
    """Share of places or of pages that is promised, the greater of both."""
    num_waiting: int = 0
    """Requests that wait for longer than steps take."""


class CapacityMeter:
    """`capacity` in tokens per second of one replica; None until something was measured."""

    def __init__(self, capacity: float | None = None) -> None:
        self.capacity = capacity
        self._readings: deque[Reading] = deque(maxlen=_WINDOW)

    def note(self, reading: Reading) -> None:
        """Readings are taken once a second; those of another number of replicas are no measure of this one."""
        if self._readings and self._readings[-1].num_replicas != reading.num_replicas:
            self._readings.clear()
        self._readings.append(reading)
        if len(self._readings) == _WINDOW and reading.num_replicas:
            self._learn(reading.num_replicas)

    def interrupt(self) -> None:
        """Nothing was known for a while: what comes now begins a new window."""
        self._readings.clear()

    def _learn(self, num_replicas: int) -> None:
        load = self._readings[-1].load
        if load <= 0:
            return
        occupancy = sum(each.occupancy for each in self._readings) / _WINDOW
        num_waiting = [each.num_waiting for each in self._readings]
        if all(num_waiting):
            most = load * self._served_share() / num_replicas
            if most > 0 and (self.capacity is None or most < self.capacity):
                self._approach(most)
        elif occupancy >= _FLOOR:
            self._approach(load / num_replicas / occupancy)
        else:
            self.capacity = max(self.capacity or 0.0, load / num_replicas / _FLOOR)

    def _served_share(self) -> float:
        """Of what arrived: the rest made the queue longer."""
        num_arrived = sum(each.arrivals_per_s for each in list(self._readings)[1:])
        grown = self._readings[-1].num_waiting - self._readings[0].num_waiting
        return max(0.0, 1.0 - grown / num_arrived) if num_arrived > 0 else 0.0

    def _approach(self, sample: float) -> None:
        """Slowly while the load changes: what is promised follows it only after a request's time."""
        loads = [each.load for each in self._readings]
        weight = _WEIGHT if max(loads) - min(loads) <= _STEADY * max(loads) else _WEIGHT / 5
        self.capacity = sample if self.capacity is None else self.capacity + weight * (sample - self.capacity)
