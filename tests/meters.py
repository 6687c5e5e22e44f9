"""What a metric of this process reads, for tests that drive something and look at the page."""

from headrace_kit import telemetry


def reading(name: str, **labels: str) -> float:
    """One sample of Prometheus' registry; 0 for a series that is not there yet."""
    return telemetry.REGISTRY.get_sample_value(name, labels) or 0.0


class Moved:
    """How far metrics have moved since this was made: `Moved("a_total")`, then `moved()`."""

    def __init__(self, name: str, **labels: str) -> None:
        self._name, self._labels = name, labels
        self._before = reading(name, **labels)

    def __call__(self) -> float:
        return reading(self._name, **self._labels) - self._before
