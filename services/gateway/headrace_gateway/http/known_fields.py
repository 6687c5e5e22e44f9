"""Which fields of a body are honoured, advisory or refused; what is unknown is ignored and counted (decision 6)."""

from collections.abc import Set
from dataclasses import dataclass

from headrace_gateway.http.fields import Fields, invalid
from headrace_kit import telemetry

UNKNOWN = "unknown"
_ignored = telemetry.counter(
    "http_fields_ignored_total", "Fields of HTTP bodies without effect: advisory ones by name", ["api", "field"]
)
MISPLACED = {
    "retry_of": "is no field here: send the header x-headrace-retry-of (OpenAI's APIs also take metadata.retry_of)",
    "slo_class": "is no field here: send the header x-headrace-class",
}
"""Fields of our gRPC request: who puts one into a body means it, and would believe that it had an effect."""


@dataclass(frozen=True)
class KnownFields:
    """The fields of one API. Every refused one is a 400 that names it, unless it is empty."""

    api: str
    honoured: Set[str]
    advisory: Set[str]
    refused: Set[str]

    def check(self, body: Fields) -> None:
        for name in sorted(body.names()):
            if name in self.honoured:
                continue
            if name in MISPLACED and body.raw(name) not in ("", None):
                raise invalid(name, MISPLACED[name])
            if name in self.refused and not _is_empty(body.raw(name)):
                raise invalid(name, "is not served")
            _ignored.labels(self.api, name if name in self.advisory else UNKNOWN).inc()


def _is_empty(value: object) -> bool:
    """Whether a field says that it is not used. A number says something, also one that equals False."""
    return value is False or value in ([], {}, "")


ADVISORY = frozenset({
    "service_tier", "store", "prompt_cache_retention", "prompt_cache_options", "safety_identifier", "user",
    "parallel_tool_calls", "reasoning_effort", "verbosity", "cache_control", "moderation",
})  # fmt: skip
"""Accepted everywhere: they change nothing that a client could rely on."""
