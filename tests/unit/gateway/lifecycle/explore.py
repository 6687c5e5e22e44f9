"""Walks every interleaving of a response's events, breadth first, each abstract state once.

Counts are dropped from the key where no decision depends on them; the balance of the books is asserted on every
settlement met on the way, and by property tests with full counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace_gateway.lifecycle import Response, Terms
from headrace_gateway.lifecycle.attempt import Attempt
from headrace_gateway.lifecycle.choice import Choice, Segment
from headrace_gateway.lifecycle.events import (
    Accepted,
    AdmitRefused,
    Admitted,
    AttemptLost,
    AttemptRefused,
    ChoiceFinal,
    ClientGone,
    Decision,
    DecodeFailed,
    Event,
    GatewayStops,
    PolicyLost,
    Routed,
    RouteRefused,
    ScreenBlocked,
    Screening,
    ScreenReleased,
    Start,
    Tick,
    Tokens,
)
from headrace_gateway.lifecycle.phase import Phase
from headrace_gateway.lifecycle.placement import Placement
from headrace_gateway.lifecycle.stream import Stream

from .observer import Observer

MUTABLE = frozenset({list, Response, Placement, Stream, Attempt, Choice, Segment})


def fork(value: Any) -> Any:
    """A deep copy of the mutable parts; frozen data is shared."""
    kind = type(value)
    if kind is list:
        return [fork(item) if type(item) in MUTABLE else item for item in value]
    twin = object.__new__(kind)
    for name in kind.__slots__:
        part = getattr(value, name)
        setattr(twin, name, fork(part) if type(part) in MUTABLE else part)
    return twin


class World:
    """One machine, its observer and the clock."""

    __slots__ = ("now", "observer", "response")

    def __init__(self, response: Response, observer: Observer, now: float) -> None:
        self.response = response
        self.observer = observer
        self.now = now

    def fork(self) -> World:
        return World(fork(self.response), self.observer.fork(), self.now)

    def take(self, event: Event) -> None:
        """What happens next; asserts every promise on the way."""
        if isinstance(event, Tick):
            due = self.response.next_deadline
            assert due is not None
            self.now = max(self.now, due)
        if isinstance(event, Routed | RouteRefused):
            self.observer.answered(event.attempt, isinstance(event, Routed))
        self.observer.hear(event)
        if isinstance(event, ChoiceFinal):
            known = self.response._placement.attempts[event.attempt - 1].choices[event.choice].final
            if known is None:
                self.observer.final_arrived(event.attempt, event.choice)
        is_stale = isinstance(event, Tokens | ScreenReleased | ScreenBlocked) and event.attempt < self.response.attempt
        outputs = self.response.handle(event, now=self.now)
        assert not (is_stale and outputs), f"text of an old attempt led to {outputs}"
        self.observer.see(outputs, self.response)

    def key(self) -> tuple[object, ...]:
        """Everything that a later decision or promise can depend on; the order of choices is not part of it."""
        machine, observer = self.response, self.observer
        attempts = machine._placement.attempts
        outside = (
            observer.created,
            observer.ended,
            observer.settled,
            observer.routing,
            observer.unreported,
            observer.shown,
            observer.unacked if machine.ended else bool(observer.unacked),
        )
        if machine.ended:
            finals = tuple(any(choice.final is None for choice in attempt.choices) for attempt in attempts)
            return (*outside, finals, machine.done)
        verdict = machine._verdict
        choices = attempts[-1].choices if attempts else []
        return (
            *outside,
            machine.phase,
            verdict is not None and verdict.reason == "content_filter",
            machine._num_busy,
            machine._num_moves,
            machine._stream.screening,
            self._time_left(),
            tuple(_attempt_key(attempt) for attempt in attempts),
            tuple(sorted(_choice_key(choice, len(attempts), observer) for choice in choices)),
        )

    def _time_left(self) -> tuple[float | None, float | None]:
        machine = self.response
        queue = machine._queue_ends_at if machine.phase in (Phase.ROUTING, Phase.QUEUED) else None
        return machine._ends_at - self.now, None if queue is None else queue - self.now


def _attempt_key(attempt: Attempt) -> tuple[object, ...]:
    num_finals = sum(choice.final is not None for choice in attempt.choices)
    return (attempt.state, attempt.reached, attempt.submitted, attempt.lost, num_finals)


def _choice_key(choice: Choice, attempt: int, observer: Observer) -> tuple[object, ...]:
    num_held = choice.num_screened_chars - choice.num_released_chars
    return (
        choice.reason != "",
        choice.cancelled,
        choice.final is None,
        choice.num_screened_chars > 0,
        choice.num_released_chars > 0,
        min(num_held, 3 - observer.num_choices),
        choice.index in observer.finished,
        (attempt, choice.index) in observer.open_choices,
    )


def possible(world: World) -> Iterator[Event]:
    """Everything that may happen next, faults and stale messages included; of equal choices, one speaks for both."""
    machine, observer = world.response, world.observer
    yield Start()
    if machine.phase is not Phase.NEW:
        if machine.phase is Phase.ADMITTING:
            yield from (Admitted(mode) for mode in Screening)
            yield AdmitRefused("tpm")
        yield PolicyLost()
    yield ClientGone("client")
    yield GatewayStops()
    if machine.next_deadline is not None:
        yield Tick()
    for number in observer.routing:
        yield Routed(number, Decision(f"d{number}", f"w{number}", "e", 5.0))
        yield Routed(number, Decision(f"d{number}", f"w{number}", "e", 0.0))
        yield RouteRefused(number, "no_replica")
    for attempt in machine._placement.attempts:
        if attempt.submitted:
            distinct = {_choice_key(choice, attempt.number, observer): choice for choice in attempt.choices}
            yield from _worker(attempt, distinct.values())
            if attempt.number == machine.attempt and not machine.ended:
                yield from _texts(attempt, distinct.values(), machine._stream.screening)


def _worker(attempt: Attempt, choices: Iterable[Choice]) -> Iterator[Event]:
    number = attempt.number
    yield Accepted(number)
    yield AttemptRefused(number, "busy")
    yield AttemptRefused(number, "share_exceeded")
    yield AttemptLost(number)
    for choice in choices:
        seen = choice.num_received
        yield Tokens(number, choice.index, 1, "a", 1)
        yield ChoiceFinal(number, choice.index, "stop", "", seen + 1)
        yield ChoiceFinal(number, choice.index, "failed", "replica_draining", seen)


def _texts(attempt: Attempt, choices: Iterable[Choice], screening: Screening) -> Iterator[Event]:
    number = attempt.number
    for choice in choices:
        index, seen = choice.index, choice.num_received
        yield Tokens(number, index, 1, "", 0)
        yield Tokens(number, index, 2, "", 0, stop_at=seen + 1)
        yield ChoiceFinal(number, index, "length", "", seen, tail="t")
        yield ChoiceFinal(number, index, "failed", "engine_error", seen)
        yield ChoiceFinal(number, index, "cancelled", "client", seen)
        yield DecodeFailed(number, index)
        if screening is not Screening.NONE:
            yield ScreenReleased(number, index, choice.num_screened_chars)
            yield ScreenReleased(number, index, choice.num_released_chars + 1)
            yield ScreenBlocked(number, index)


def explore(terms: Terms, depth: int) -> tuple[int, int]:
    """Visit every abstract state within `depth` events; returns the numbers of states and transitions."""
    start = World(Response(terms, 0.0), Observer(terms.num_choices), 0.0)
    seen = {start.key()}
    frontier = [start]
    num_transitions = 0
    for _ in range(depth):
        following: list[World] = []
        for world in frontier:
            num_transitions += follow(world, seen, following)
        frontier = following
    return len(seen), num_transitions


def follow(world: World, seen: set[tuple[object, ...]], following: list[World]) -> int:
    """Take every possible event once; new worlds join `following`. Returns the number of events."""
    here = world.key()
    reached = world.fork()
    num_events = 0
    for event in possible(world):
        num_events += 1
        reached.take(event)
        key = reached.key()
        if key == here:
            continue  # nothing that matters changed: the same copy will do for the next event
        if key not in seen:
            seen.add(key)
            following.append(reached)
            must_end(reached)
        reached = world.fork()
    return num_events


def must_end(world: World) -> None:
    """Silence from everybody still ends it: deadlines alone lead to the end."""
    if world.response.ended or world.response.phase is Phase.NEW:
        return
    last = world.fork()
    for _ in range(3):
        if last.response.next_deadline is None:
            break
        last.take(Tick())
    assert last.response.ended, f"deadlines did not end it: {last.response.phase!r}"
