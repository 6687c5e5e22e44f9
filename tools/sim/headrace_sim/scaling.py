"""The autoscaler's eyes and hands on the virtual clock: demand in, production's decision, a new target out.

Each second, as routers report it. Loads are declared tokens (prompt and output limit) per second, which is what they
report; the capacity of a replica has the same unit. Does not decide anything.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from headrace_controlplane.autoscale import Decision, Demand, Picture, ScalePolicy, ScaleState, Seen, decide
from headrace_sim.replica import Replica

TICK_S = 1.0
# The load that is scaled to is that of this long: Poisson noise of single seconds asks for nothing.
_WINDOW_S = 10
_STATES = {"loading": "starting", "ready": "ready", "draining": "draining"}


class Forecaster(Protocol):
    """Learns a load second by second and says its upper quantile some time ahead; None while it knows too little."""

    def note(self, at_s: float, load: float) -> None: ...

    def quantile(self, horizon_s: float) -> float | None: ...


@dataclass
class Scaled:
    """One pool under the autoscaler."""

    pool: str
    policy: ScalePolicy
    start_up_s: float
    capacity: float
    forecaster: Forecaster | None
    oldest_wait_s: Callable[[], float]
    num_held: Callable[[], int]
    replicas: Callable[[], list[Replica]]
    state: ScaleState
    arrived: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW_S))
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    schedule: Callable[[float], int] | None = None
    """Says the replicas of a time by itself, instead of production's decision: to be compared with."""

    def note(self, num_tokens: int) -> None:
        """A request of so many declared tokens arrived."""
        self.arrived += num_tokens

    def tick(self, now: float, is_blind: bool, share: float) -> int:
        """The replicas that the pool should have from now on; its share of what the model is asked for."""
        if self.schedule is not None:
            return self.schedule(now)
        self.arrived *= share
        demand = None
        if not is_blind:
            self.recent.append(self.arrived / TICK_S)
            load = sum(self.recent) / len(self.recent)
            if self.forecaster is not None:
                self.forecaster.note(now, self.arrived / TICK_S)
            demand = Demand(now, load, self.num_held(), self.oldest_wait_s())
        self.arrived = 0.0
        forecast = self.forecaster.quantile(self.start_up_s) if self.forecaster and not is_blind else None
        seen = [Seen(_STATES[each.state], now - each.started_s) for each in self.replicas() if not each.is_gone]  # type: ignore[arg-type]
        picture = Picture(now, demand, seen, self.start_up_s, self.capacity, forecast)
        decision = decide(self.policy, picture, self.state)
        if decision.desired != self.state.desired or decision.alarm:
            self.decisions.append((now, decision))
        self.state = decision.state
        return decision.desired
