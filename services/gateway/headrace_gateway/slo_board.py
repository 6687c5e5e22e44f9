"""What each class attained, as metrics. Classes come with the snapshot; a class that left is shown no more."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from prometheus_client.core import GaugeMetricFamily

from headrace.v1 import snapshot_pb2
from headrace_gateway.slo import DEFAULT_TARGET, WINDOWS_S, Attainment, Budgets, Met, Track
from headrace_kit import telemetry

NO_CLASS = "none"
Families: TypeAlias = "tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]"
_counted = telemetry.counter(
    "slo_responses_total", "Responses by what of their class they met; counted is all of them", ["slo_class", "met"]
)
_broken = telemetry.counter(
    "slo_broken_total", "Responses that broke a budget, by the phase to blame", ["slo_class", "budget", "phase"]
)
_infeasible = telemetry.counter(
    "ttft_infeasible_total", "Responses whose prefill alone was predicted to take the whole budget", ["slo_class"]
)
_ATTAINMENT = ("slo_attainment_ratio", "Share of responses that met a budget of their class")
_GOODPUT = ("goodput_responses_per_second", "Responses that met every budget of their class")
_BURN = ("slo_burn_ratio", "How fast the error budget is spent: at 1 it lasts exactly")


class SloBoard:
    """Counts by class; itself the collector of what is computed over windows. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tracks: dict[str, Track] = {}
        telemetry.REGISTRY.register(self)

    def apply(self, classes: Iterable[snapshot_pb2.SloClass]) -> None:
        """Puts the classes of a snapshot in force; what was counted of one whose budgets stay is kept."""
        tracks = {}
        for one in classes:
            seconds = (one.ttft_ms / 1000, one.inter_token_ms / 1000)
            budgets = Budgets(one.name, *seconds, one.target or DEFAULT_TARGET, one.delivery_reserve_ms / 1000)
            known = self._tracks.get(one.name)
            tracks[one.name] = known if known is not None and known.budgets == budgets else Track(budgets)
        self._tracks = tracks

    def budgets(self, slo_class: str) -> Budgets:
        """Without limits for a class that is not known, or no more."""
        track = self._tracks.get(slo_class)
        return Budgets(NO_CLASS) if track is None else track.budgets

    def count(self, budgets: Budgets, met: Met, phase: str) -> None:
        _counted.labels(budgets.name, "counted").inc()
        for name in ("ttft", "inter_token", "good"):
            if getattr(met, name):
                _counted.labels(budgets.name, name).inc()
        if met.broken and phase:
            _broken.labels(budgets.name, met.broken, phase).inc()
        track = self._tracks.get(budgets.name)
        if track is not None:
            track.add(met, self._clock())

    def infeasible(self, budgets: Budgets) -> None:
        _infeasible.labels(budgets.name).inc()

    def over(self, window: str) -> dict[str, Attainment]:
        """By class."""
        now = self._clock()
        return {name: track.over(WINDOWS_S[window], now) for name, track in self._tracks.items()}

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield from self._families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families = self._families()
        for window in WINDOWS_S:
            for name, got in self.over(window).items():
                _add(families, name, window, got)
        yield from families

    @staticmethod
    def _families() -> Families:
        return (
            GaugeMetricFamily(*_ATTAINMENT, labels=("slo_class", "budget", "window")),
            GaugeMetricFamily(*_GOODPUT, labels=("slo_class", "window")),
            GaugeMetricFamily(*_BURN, labels=("slo_class", "window")),
        )


def _add(families: Families, slo_class: str, window: str, got: Attainment) -> None:
    attained, goodput, burn = families
    goodput.add_metric((slo_class, window), got.goodput_per_s)
    burn.add_metric((slo_class, window), got.burn)
    for budget, share in (("ttft", got.ttft), ("inter_token", got.inter_token)):
        if share is not None:
            attained.add_metric((slo_class, budget, window), share)
