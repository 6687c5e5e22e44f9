"""Histograms of latency with an edge at each objective. Adding to one is a search in a short list and an addition.

The objectives come with the snapshot. New edges begin new counts, as a restart does: no count can be split afterwards.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.samples import Exemplar

from headrace_kit import telemetry

LABELS = ("model", "slo_class")


class Series:
    """Counts of one model and class. `counts[i]` are those in (edges[i-1], edges[i]]; the last is beyond all edges."""

    __slots__ = ("_edges", "counts", "exemplars", "sum_s")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum_s = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self._edges, seconds)] += 1
        self.sum_s += seconds

    def point_to(self, seconds: float, trace_id: str) -> None:
        """The trace of a value that was added; the last one of its bucket is shown."""
        self.exemplars[bisect_left(self._edges, seconds)] = Exemplar({"trace_id": trace_id}, seconds, time.time())


class Latency:
    """One histogram; itself the collector that Prometheus' client asks."""

    def __init__(self, name: str, meaning: str) -> None:
        self._name, self._meaning = name, meaning
        self._edges: tuple[float, ...] = telemetry.SECONDS
        self._series: dict[tuple[str, str], Series] = {}
        telemetry.REGISTRY.register(self)

    def set_objectives(self, seconds: Iterable[float]) -> None:
        edges = tuple(sorted({*telemetry.SECONDS, *(each for each in seconds if 0 < each < float("inf"))}))
        if edges != self._edges:
            self._edges, self._series = edges, {}

    def of(self, model: str, slo_class: str) -> Series:
        """Names from closed sets; ask once per response, not per token."""
        found = self._series.get((model, slo_class))
        if found is None:
            found = self._series[model, slo_class] = Series(self._edges)
        return found

    def describe(self) -> Iterator[HistogramMetricFamily]:
        yield HistogramMetricFamily(self._name, self._meaning, labels=LABELS)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._meaning, labels=LABELS)
        bounds = ["+Inf" if each == float("inf") else repr(float(each)) for each in (*self._edges, float("inf"))]
        for labels, series in self._series.items():
            total = 0
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
            for index, bound in enumerate(bounds):
                total += series.counts[index]
                exemplar = series.exemplars.get(index)
                buckets.append((bound, total) if exemplar is None else (bound, total, exemplar))
            family.add_metric(labels, buckets, series.sum_s)
        yield family
