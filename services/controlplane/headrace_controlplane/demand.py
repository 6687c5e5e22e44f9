"""What routers were asked for lately, and how full they see pools. Decides nothing; silence is not zero."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.v1 import fleet_pb2
from headrace_kit import telemetry

_held = telemetry.gauge("demand_held", "Requests that routers hold for a replica")
_arrivals = telemetry.counter("demand_arrivals_total", "Requests that routers were asked for")
FRESH_S = 5.0
# The load is that of so long: the Poisson noise of single seconds asks for nothing.
WINDOW_S = 10.0


@dataclass
class _Router:
    """Reports of one router with the times at which they came, the last one last."""

    heard: deque[tuple[float, fleet_pb2.DemandReport]] = field(default_factory=deque)

    @property
    def last_at(self) -> float:
        return self.heard[-1][0]

    @property
    def last(self) -> fleet_pb2.DemandReport:
        return self.heard[-1][1]


@dataclass(frozen=True)
class ModelLoad:
    """Of one model, over all routers: declared tokens and requests per second, and what is held for a replica."""

    tokens_per_s: float = 0.0
    arrivals_per_s: float = 0.0
    num_held: int = 0
    oldest_held_s: float = 0.0


class DemandBoard:
    """The last WINDOW_S of each router that spoke within FRESH_S seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._routers: dict[str, _Router] = {}
        self.last_at: float | None = None
        """When any router was heard of last."""

    def note(self, report: fleet_pb2.DemandReport) -> None:
        now = self.last_at = self._clock()
        self._routers = {name: router for name, router in self._routers.items() if now - router.last_at < FRESH_S}
        heard = self._routers.setdefault(report.router_id, _Router()).heard
        heard.append((now, report))
        while now - heard[0][0] > WINDOW_S:
            heard.popleft()
        _arrivals.inc(sum(model.num_arrivals for model in report.models))
        _held.set(sum(model.num_held for router in self._routers.values() for model in router.last.models))

    def fresh(self) -> list[fleet_pb2.DemandReport]:
        """The last report of each router that is not silent."""
        return [router.last for router in self._fresh()]

    def load(self, model: str) -> ModelLoad:
        """A router that does not name the model was not asked for it."""
        tokens = arrivals = oldest_s = 0.0
        num_held = 0
        for router in self._fresh():
            length_s = sum(max(1, report.interval_ms) for _, report in router.heard) / 1000
            rows = [row for _, report in router.heard for row in report.models if row.model == model]
            tokens += sum(row.num_prompt_tokens + row.num_output_bound_tokens for row in rows) / length_s
            arrivals += sum(row.num_arrivals for row in rows) / length_s
            now = [row for row in router.last.models if row.model == model]
            num_held += sum(row.num_held for row in now)
            oldest_s = max([oldest_s, *(row.oldest_held_ms / 1000 for row in now)])
        return ModelLoad(tokens, arrivals, num_held, oldest_s)

    def pool(self, name: str) -> fleet_pb2.PoolLoad | None:
        """As the router sees it that sees most of it; None if nobody does."""
        seen = [pool for report in self.fresh() for pool in report.pools if pool.pool == name]
        return max(seen, key=lambda pool: pool.num_replicas, default=None)

    def _fresh(self) -> list[_Router]:
        now = self._clock()
        return [router for router in self._routers.values() if now - router.last_at < FRESH_S]
