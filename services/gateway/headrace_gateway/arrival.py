"""When a request arrived, and of which trace it is: known before anything else about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from headrace_kit import tracing
from headrace_kit.tracing import TraceContext


@dataclass(frozen=True, slots=True)
class Arrival:
    """`at` is the monotonic clock in seconds; `root` is the response's own span; the client's is its parent, if any."""

    at: float
    root: TraceContext
    parent_id: str = ""
    wished: bool = False

    @classmethod
    def now(cls, headers: Mapping[str, Any]) -> "Arrival":
        """From lower-case header names; a trace context that is not valid begins a new trace, without an error."""
        at, parent = monotonic(), tracing.parse(headers)
        if parent is None:
            return cls(at, tracing.root())
        return cls(at, parent.child()._replace(sampled=False), parent.span_id, parent.sampled)
