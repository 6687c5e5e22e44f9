"""W3C trace context, and spans that wait for a verdict. Knows no exporter and no service.

Whether a trace is kept is decided at the end of its response, where errors and broken budgets are known. Until then the
flag `sampled` is off and spans wait here; they leave once anything of their trace comes by with the flag on. What is
never asked for is forgotten, oldest first. Contexts: https://www.w3.org/TR/trace-context/ (level 1).
"""

import random
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from headrace_kit import telemetry

Value = str | bool | int | float | list[str]
INTERNAL, SERVER = 1, 2
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[\x20-\x7e]{1,512}")
_MAX_UNDECIDED = 4096
_forgotten = telemetry.counter("traces_let_go_total", "Traces whose spans nobody asked for")


class TraceContext(NamedTuple):
    """Hexadecimal ids; `sampled`: the trace is kept, or a client wishes it."""

    trace_id: str
    span_id: str
    sampled: bool = False
    state: str = ""

    @property
    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"

    def child(self) -> "TraceContext":
        return self._replace(span_id=new_span_id())


class Link(NamedTuple):
    """Another span that this one is about."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Value]


@dataclass(slots=True)
class Span:
    """One phase; Unix times in nanoseconds. `error`: a reason, if it did not end well."""

    context: TraceContext
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    kind: int = INTERNAL
    attributes: dict[str, Value] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    error: str = ""


class Outlet(Protocol):
    """Where spans leave; never waits and never raises."""

    def put(self, span: Span) -> None: ...


class Spans:
    """Those that wait for the verdict on their trace, and the outlets of the others."""

    def __init__(self, max_undecided: int = _MAX_UNDECIDED) -> None:
        self.outlets: list[Outlet] = []
        self._max_undecided = max_undecided
        self._undecided: OrderedDict[str, list[Span]] = OrderedDict()

    def end(self, span: Span) -> None:
        """Takes a span that has ended: out, and its trace with it, if the trace is kept; else it waits."""
        if span.context.sampled:
            self.keep(span.context.trace_id)
            self._put(span)
            return
        waiting = self._undecided.setdefault(span.context.trace_id, [])
        waiting.append(span)
        if len(self._undecided) > self._max_undecided:
            self._undecided.popitem(last=False)
            _forgotten.inc()

    def keep(self, trace_id: str) -> None:
        """What waits of this trace leaves."""
        for span in self._undecided.pop(trace_id, ()):
            self._put(span)

    def _put(self, span: Span) -> None:
        for outlet in self.outlets:
            outlet.put(span)


SPANS = Spans()
_current: ContextVar[TraceContext | None] = ContextVar("headrace_trace", default=None)
_notes: ContextVar[dict[str, Value] | None] = ContextVar("headrace_span_notes", default=None)


def new_span_id() -> str:
    return format(random.getrandbits(64) or 1, "016x")


def root() -> TraceContext:
    return TraceContext(format(random.getrandbits(128) or 1, "032x"), new_span_id())


def parse(headers: Mapping[str, Any]) -> TraceContext | None:
    """The caller's context from lower-case header names; None for none, or for one that is not valid."""
    given = headers.get("traceparent")
    matched = _PARENT.fullmatch(given) if isinstance(given, str) else None
    if matched is None:
        return None
    version, trace_id, span_id, flags, rest = matched.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = str(headers.get("tracestate", ""))
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1), state if _STATE.fullmatch(state) else "")


def current() -> TraceContext | None:
    """The span under way."""
    return _current.get()


def enter(context: TraceContext | None) -> None:
    """What this task does from here on belongs to the span; for tasks of their own."""
    _current.set(context)


def annotate(**attributes: Value) -> None:
    """Adds `headrace.NAME` attributes to the span of the RPC under way, if it has one."""
    notes = _notes.get()
    if notes is not None:
        notes |= {f"headrace.{name}": value for name, value in attributes.items()}


@contextmanager
def entered(context: TraceContext) -> Iterator[dict[str, Value]]:
    """The span is current; yields what is added to it by `annotate`."""
    notes: dict[str, Value] = {}
    tokens = _current.set(context), _notes.set(notes)
    try:
        yield notes
    finally:
        _current.reset(tokens[0])
        _notes.reset(tokens[1])


def inject() -> dict[str, str]:
    """Headers that continue the current span."""
    context = _current.get()
    if context is None:
        return {}
    return {"traceparent": context.header} | ({"tracestate": context.state} if context.state else {})
