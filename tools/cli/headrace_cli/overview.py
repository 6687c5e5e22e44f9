"""The fleet in figures, from two looks at everybody's metrics and the latest settlements. Pure; draws nothing."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Look:
    """Samples of one process by name and labels; `at_s` is when it was asked. One that is silent has none."""

    service: str
    instance: str
    at_s: float
    samples: Mapping[str, Mapping[Labels, float]]
    is_silent: bool = False

    def total(self, name: str, **labels: str) -> float:
        """Sum over every series that has these labels."""
        wanted = labels.items()
        return sum(value for own, value in self.samples.get(name, {}).items() if wanted <= set(own))

    def values(self, name: str, label: str) -> dict[str, float]:
        """Sums by one label."""
        found: defaultdict[str, float] = defaultdict(float)
        for own, value in self.samples.get(name, {}).items():
            found[dict(own).get(label, "")] += value
        return dict(found)


def read(service: str, instance: str, at_s: float, text: str) -> Look:
    """Of Prometheus' text format."""
    samples: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name][frozenset(sample.labels.items())] = sample.value
    return Look(service, instance, at_s, samples)


@dataclass(frozen=True)
class Pair:
    """One process now, and as it was; the same look twice where it was not there before."""

    now: Look
    before: Look

    def rate(self, name: str, **labels: str) -> float:
        """Growth per second of a counter; a process that began anew counts from 0."""
        took_s = self.now.at_s - self.before.at_s
        grown = self.now.total(name, **labels) - self.before.total(name, **labels)
        return max(0.0, grown) / took_s if took_s > 0 else 0.0

    def mean(self, name: str, **labels: str) -> float | None:
        """Of a histogram, over what was observed between."""
        count = self.now.total(f"{name}_count", **labels) - self.before.total(f"{name}_count", **labels)
        total = self.now.total(f"{name}_sum", **labels) - self.before.total(f"{name}_sum", **labels)
        return total / count if count > 0 else None


def pairs(now: Iterable[Look], before: Iterable[Look]) -> list[Pair]:
    known = {(one.service, one.instance): one for one in before if not one.is_silent}
    return [Pair(one, known.get((one.service, one.instance), one)) for one in now]


@dataclass(frozen=True)
class EngineLine:
    """One worker. Times in seconds, memory as shares of the pool."""

    name: str
    num_running: float
    num_waiting: float
    oldest_s: float
    held: float
    cached: float
    promised: float
    tokens_per_s: float
    step_s: float | None


@dataclass(frozen=True)
class ClassLine:
    """One SLO class over five minutes, the worst of all gateways; None where nothing was counted."""

    name: str
    ttft: float | None
    inter_token: float | None
    goodput_per_s: float
    burn: float
    burn_hour: float


@dataclass
class TenantLine:
    """One tenant over the window of settlements that was read."""

    name: str
    num_responses: int = 0
    num_failed: int = 0
    num_refused: int = 0
    num_output_tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True)
class Overview:
    """Everything that `headrace top` shows."""

    version: float = 0
    num_ready: float = 0
    num_replicas: float = 0
    num_open: float = 0
    responses_per_s: float = 0
    refusals_per_s: float = 0
    tokens_per_s: float = 0
    num_unbalanced: float = 0
    engines: list[EngineLine] = field(default_factory=list)
    classes: list[ClassLine] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    """Processes that did not answer, by service and name: nothing above has their figures."""


def overview(of: Iterable[Pair]) -> Overview:
    by_service: defaultdict[str, list[Pair]] = defaultdict(list)
    silent = list[str]()
    for pair in of:
        if pair.now.is_silent:
            silent.append(f"{pair.now.service} {pair.now.instance}")
        else:
            by_service[pair.now.service].append(pair)
    gateways, controls = by_service["gateway"], by_service["controlplane"]
    states: defaultdict[str, float] = defaultdict(float)
    for pair in controls:
        for state, count in pair.now.values("replicas", "state").items():
            states[state] += count
    return Overview(
        version=max((pair.now.total("fleet_version") for pair in controls), default=0),
        num_ready=states["ready"],
        num_replicas=sum(states.values()),
        num_open=sum(pair.now.total("responses_open") for pair in gateways),
        responses_per_s=sum(pair.rate("responses_total") for pair in gateways),
        refusals_per_s=sum(pair.rate("refusals_total") for pair in gateways),
        tokens_per_s=sum(pair.rate("tokens_total", kind="output") for pair in gateways),
        num_unbalanced=sum(pair.now.total("audit_unbalanced") for pair in controls),
        engines=sorted((_engine(pair) for pair in by_service["worker"]), key=lambda line: line.name),
        classes=_classes(gateways),
        silent=sorted(silent),
    )


def _engine(pair: Pair) -> EngineLine:
    now, states = pair.now, pair.now.values("worker_pages", "state")
    pages = sum(states.values()) or 1
    return EngineLine(
        name=now.instance,
        num_running=now.total("worker_running"),
        num_waiting=now.total("worker_waiting"),
        oldest_s=now.total("worker_queue_age_seconds"),
        held=states.get("held", 0) / pages,
        cached=states.get("cached", 0) / pages,
        promised=now.total("worker_promised_pages") / pages,
        tokens_per_s=pair.rate("worker_tokens_total", kind="generated"),
        step_s=pair.mean("worker_step_seconds", part="forward"),
    )


def _classes(gateways: list[Pair]) -> list[ClassLine]:
    names = {name for pair in gateways for name in pair.now.values("slo_burn_ratio", "slo_class")}
    return [_class(name, gateways) for name in sorted(names)]


def _class(name: str, gateways: list[Pair]) -> ClassLine:
    def worst(budget: str) -> float | None:
        wanted = {("slo_class", name), ("budget", budget), ("window", "5m")}
        found = [
            value
            for pair in gateways
            for own, value in pair.now.samples.get("slo_attainment_ratio", {}).items()
            if wanted <= own
        ]
        return min(found, default=None)

    def burn(window: str) -> float:
        return max((pair.now.total("slo_burn_ratio", slo_class=name, window=window) for pair in gateways), default=0.0)

    goodput = sum(pair.now.total("goodput_responses_per_second", slo_class=name, window="5m") for pair in gateways)
    return ClassLine(name, worst("ttft"), worst("inter_token"), goodput, burn("5m"), burn("1h"))
