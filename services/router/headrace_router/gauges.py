"""How the replicas stand, as Prometheus asks: breakers by state, warm capacity and held requests by model.

Read from the table at each scrape; models are the snapshot's, so their names are a closed set.
"""

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily

from headrace_kit import telemetry
from headrace_router.breaker import Breaker
from headrace_router.demand import Demand
from headrace_router.fleet_rules import FleetRules
from headrace_router.replicas import Replica, ReplicaTable

_BREAKERS = ("breakers", "Circuit breakers of replicas by state", ("state",))
_WARM = ("warm_replicas", "Replicas that are ready, by model", ("model",))
_ROOM = ("warm_tokens", "KV tokens that ready replicas have not promised, by model", ("model",))
_HELD = ("route_held", "Requests that wait for a replica, by model", ("model",))


def breaker_state(breaker: Breaker, now: float) -> str:
    if breaker.open_until is None:
        return "closed"
    return "half_open" if now >= breaker.open_until else "open"


class Gauges:
    """Itself the collector; `register` shows it."""

    def __init__(
        self, rules: FleetRules, table: ReplicaTable, demand: Demand, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rules, self._table, self._demand, self._clock = rules, table, demand, clock

    def register(self) -> None:
        telemetry.REGISTRY.register(self)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield from _families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        breakers, warm, room, held = _families()
        now = self._clock()
        states = [breaker_state(replica.breaker, now) for replica in self._table]
        for state in ("closed", "open", "half_open"):
            breakers.add_metric((state,), states.count(state))
        for model in self._rules.models:
            ready = [replica for replica in self._table.of_model(model) if replica.ready]
            warm.add_metric((model,), len(ready))
            room.add_metric((model,), sum(map(_free_tokens, ready)))
            held.add_metric((model,), self._demand.num_held(model))
        yield from (breakers, warm, room, held)


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    breakers, warm, room, held = (GaugeMetricFamily(name, meaning, labels=labels) for name, meaning, labels in _ALL)
    return breakers, warm, room, held


_ALL = (_BREAKERS, _WARM, _ROOM, _HELD)


def _free_tokens(replica: Replica) -> int:
    described = replica.description
    if described is None:
        return 0
    return max(0, replica.load.num_total_pages - replica.load.num_promised_pages) * described.page_tokens
