"""One Prometheus registry with closed label sets, and W3C trace context. Knows no metric of a service."""

from collections.abc import Callable, Iterable, Mapping

import prometheus_client
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
SECONDS = (.001, .002, .005, .01, .02, .05, .1, .2, .3, .5, .7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 60, 120, 300, 600)
_propagator = TraceContextTextMapPropagator()
tracer = trace.get_tracer("headrace")


def counter(name: str, meaning: str, labels: Iterable[str] = ()) -> Counter:
    """A counter; ``name`` ends in _total. Label values must come from closed sets."""
    return Counter(name, meaning, list(labels), registry=REGISTRY)


def gauge(name: str, meaning: str, labels: Iterable[str] = ()) -> Gauge:
    return Gauge(name, meaning, list(labels), registry=REGISTRY)


def histogram(name: str, meaning: str, labels: Iterable[str] = (), *, buckets: Iterable[float] = SECONDS) -> Histogram:
    """A histogram; the default buckets are seconds from 1 ms to 10 minutes with an edge at the 700 ms objective."""
    return Histogram(name, meaning, list(labels), registry=REGISTRY, buckets=tuple(buckets))


def exposition() -> tuple[bytes, str]:
    """Body and content type of ``/metrics``."""
    return prometheus_client.generate_latest(REGISTRY), prometheus_client.CONTENT_TYPE_LATEST


def setup_tracing(service: str, instance: str, otlp_endpoint: str | None) -> Callable[[], None]:
    """Installs the tracer; spans leave the process only if an OTLP/gRPC endpoint is given. Returns its shutdown."""
    provider = TracerProvider(resource=Resource.create({"service.name": f"headrace-{service}",
                                                        "service.instance.id": instance}))
    if otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # optional dependency
        exporter = OTLPSpanExporter(endpoint=otlp_endpoint, insecure=not otlp_endpoint.startswith("https"))
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def extract(metadata: Mapping[str, str]) -> Context:
    """The caller's trace context from lower-case header names; an invalid or absent one gives a new root."""
    return _propagator.extract({k: v for k, v in metadata.items() if k in ("traceparent", "tracestate")}, Context())


def inject() -> dict[str, str]:
    """Headers (traceparent, tracestate) that continue the current span."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier


def trace_id() -> str | None:
    """32 hex digits of the current trace."""
    context = trace.get_current_span().get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else None
