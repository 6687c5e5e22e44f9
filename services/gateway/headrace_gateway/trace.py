"""The times of one response's phases; spans are made from them at its end, if its trace is kept, and only then.

    gate | route queue prefill decode | route queue prefill decode | settle | deliver
           `----- attempt 1 --------'   `----- attempt 2 --------'

The phases tile the response: together they take as long as it did. Queue, prefill and decode are the worker's own
spans; of an attempt that never got a final, because it was refused or its worker was lost, they are told from here.
Text goes out while it is decoded, so `deliver` is what its client still had to read when the books were closed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from headrace.v1 import routing_pb2, worker_pb2
from headrace_gateway.arrival import Arrival
from headrace_gateway.lifecycle.outputs import Report
from headrace_gateway.trace_draw import TraceDraw
from headrace_kit.tracing import TraceContext

DECODE, PREFILL = "decode", "prefill"


@dataclass(slots=True)
class AttemptTimes:
    """Of one attempt; points of the monotonic clock in seconds, None for what never came."""

    number: int
    span: TraceContext
    route: TraceContext
    routing_at: float
    routed_at: float | None = None
    accepted_at: float | None = None
    ended_at: float | None = None
    answer: routing_pb2.RouteResponse | None = None
    accepted: worker_pb2.Accepted | None = None
    final: worker_pb2.Final | None = None
    outcome: str = ""
    reason: str = ""
    phase: str = ""
    is_told: bool = False
    """Its phases were told from here: its worker's own, should they come after all, would be told twice."""

    def accept(self, accepted: worker_pb2.Accepted, now: float) -> None:
        self.accepted_at, self.accepted = now, accepted

    def end(self, final: worker_pb2.Final) -> None:
        """The final of the choice that took longest speaks for the attempt."""
        if self.final is None or final.decode_ms > self.final.decode_ms:
            self.final = final


@dataclass(slots=True)
class ResponseTimes:
    """Of one response, on the monotonic clock in seconds."""

    arrival: Arrival
    gate: TraceContext
    settle: TraceContext
    attempts: list[AttemptTimes] = field(default_factory=list)
    authenticated_at: float | None = None
    prepared_at: float | None = None
    admitted_at: float | None = None
    settling_at: float | None = None
    settled_at: float | None = None
    first_text_at: float | None = None
    ended_at: float | None = None
    cost: float | None = None


class Trace:
    """Follows one response. `wall_ns` is the Unix time at `arrival.at`; it is `now`."""

    def __init__(self, arrival: Arrival, now: float) -> None:
        root = arrival.root
        self.times = ResponseTimes(arrival, root.child(), root.child())
        self.wall_ns = time.time_ns() - round((now - arrival.at) * 1e9)
        self.is_kept = False
        self._is_drawn: bool | None = None

    @property
    def root(self) -> TraceContext:
        return self.times.arrival.root

    def authenticated(self, now: float) -> None:
        self.times.authenticated_at = now

    def prepared(self, now: float) -> None:
        self.times.prepared_at = now

    def routing(self, number: int, now: float) -> TraceContext:
        """An attempt begins; what the router does belongs to the span that is returned."""
        times = self.times
        if times.admitted_at is None:
            times.admitted_at = now
        span = self.root.child()
        times.attempts.append(AttemptTimes(number, span, self.root.child(), now))
        return times.attempts[-1].route

    def routed(self, number: int, answer: routing_pb2.RouteResponse | None, now: float) -> None:
        """None: refused."""
        attempt = self.attempt(number)
        attempt.routed_at, attempt.answer = now, answer
        if answer is None:
            attempt.ended_at = now

    def attempt(self, number: int) -> AttemptTimes:
        return self.times.attempts[number - 1]

    def reported(self, report: Report, now: float) -> None:
        """An attempt is over."""
        attempt = self.attempt(report.attempt)
        attempt.ended_at, attempt.outcome, attempt.reason = now, report.outcome, report.reason
        attempt.phase = report.phase

    def settling(self, now: float) -> TraceContext:
        times = self.times
        times.settling_at = now
        if times.attempts:
            times.attempts[-1].ended_at = now
        else:
            times.admitted_at = now
        return times.settle._replace(sampled=self.is_kept)

    def settled(self, cost: float | None, now: float) -> None:
        self.times.settled_at, self.times.cost = now, cost

    def decide(self, *, broken: bool, draw: TraceDraw, now: float) -> bool:
        """Whether the trace is kept, as far as is known: what went wrong always is; others are drawn once."""
        self.is_kept = self.is_kept or broken
        if not self.is_kept and self._is_drawn is None:
            self._is_drawn = draw.draw(self.root.trace_id, self.times.arrival.wished, now)
        self.is_kept = self.is_kept or bool(self._is_drawn)
        return self.is_kept
