"""What routers were asked for lately, per router. Decides nothing; silence is missing data and not zero."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.v1 import fleet_pb2
from headrace_kit import telemetry

_held = telemetry.gauge("demand_held", "Requests that routers hold for a replica")
_arrivals = telemetry.counter("demand_arrivals_total", "Requests that routers were asked for")
FRESH_S = 5.0


@dataclass(frozen=True)
class _Heard:
    at: float
    report: fleet_pb2.DemandReport


class DemandBoard:
    """The last report of each router that spoke within FRESH_S seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: dict[str, _Heard] = {}

    def note(self, report: fleet_pb2.DemandReport) -> None:
        self._heard = {name: heard for name, heard in self._heard.items() if self._clock() - heard.at < FRESH_S}
        self._heard[report.router_id] = _Heard(self._clock(), report)
        _arrivals.inc(sum(model.num_arrivals for model in report.models))
        _held.set(sum(model.num_held for heard in self._heard.values() for model in heard.report.models))

    def fresh(self) -> list[fleet_pb2.DemandReport]:
        return [heard.report for heard in self._heard.values() if self._clock() - heard.at < FRESH_S]
