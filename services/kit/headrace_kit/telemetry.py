"""One Prometheus registry with closed label sets. Knows no metric of a service."""

from functools import partial

import prometheus_client

REGISTRY = prometheus_client.CollectorRegistry()
# Seconds from 1 ms to 10 minutes, with an edge at the 700 ms objective.
SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 60, 120, 300,
    600,
)  # fmt: skip
# (name, meaning, labels=()); label values must come from closed sets.
counter = partial(prometheus_client.Counter, registry=REGISTRY)
gauge = partial(prometheus_client.Gauge, registry=REGISTRY)
histogram = partial(prometheus_client.Histogram, registry=REGISTRY, buckets=SECONDS)


def exposition(accept: str = "") -> tuple[bytes, str]:
    """Body and content type of ``/metrics``; OpenMetrics, which has exemplars, for those who accept it."""
    encode, content_type = prometheus_client.exposition.choose_encoder(accept)
    return encode(REGISTRY), content_type
