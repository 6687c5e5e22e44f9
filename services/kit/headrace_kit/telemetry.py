"""One Prometheus registry with closed label sets, and W3C trace context. Knows no metric of a service."""

from collections.abc import Callable, Mapping
from functools import partial

import prometheus_client
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

REGISTRY = prometheus_client.CollectorRegistry()
# Seconds from 1 ms to 10 minutes, with an edge at the 700 ms objective.
SECONDS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.7,
    1,
    1.5,
    2,
    3,
    5,
    7,
    10,
    15,
    20,
    30,
    60,
    120,
    300,
    600,
)
# (name, meaning, labels=()); label values must come from closed sets.
counter = partial(prometheus_client.Counter, registry=REGISTRY)
gauge = partial(prometheus_client.Gauge, registry=REGISTRY)
histogram = partial(prometheus_client.Histogram, registry=REGISTRY, buckets=SECONDS)
tracer = trace.get_tracer("headrace")
_propagator = TraceContextTextMapPropagator()


def exposition() -> tuple[bytes, str]:
    """Body and content type of ``/metrics``."""
    return prometheus_client.generate_latest(REGISTRY), prometheus_client.CONTENT_TYPE_LATEST


def setup_tracing(service: str, instance: str, otlp_endpoint: str | None) -> Callable[[], None]:
    """Installs the tracer; spans leave the process only if an OTLP/gRPC endpoint is given. Returns its shutdown."""
    names = {"service.name": f"headrace-{service}", "service.instance.id": instance}
    provider = TracerProvider(resource=Resource.create(names))
    if otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # slow to import

        exporter = OTLPSpanExporter(endpoint=otlp_endpoint, insecure=not otlp_endpoint.startswith("https"))
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def extract(headers: Mapping[str, str]) -> Context:
    """The caller's trace context from lower-case header names; an invalid or absent one gives a new root."""
    return _propagator.extract({k: v for k, v in headers.items() if k in ("traceparent", "tracestate")}, Context())


def inject() -> dict[str, str]:
    """Headers (traceparent, tracestate) that continue the current span."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier


def trace_id() -> str | None:
    """32 hex digits of the current trace."""
    context = trace.get_current_span().get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else None
