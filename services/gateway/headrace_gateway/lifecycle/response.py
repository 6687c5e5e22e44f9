"""The response as a state machine: one ordered stream under one identity that ends exactly once.

`handle(event, now)` returns what the shell must do, in order. The machine does no I/O, keeps no clock, and knows
neither sockets nor token ids. It tolerates any event at any time: one that is late, repeated or for an older attempt is
dropped (its tokens still counted).

    NEW -> ADMITTING -> ROUTING <-> QUEUED -> STREAMING -> CLOSING -> ENDED
                           ^------------------'  next attempt, before the first delta

Before `Created` the only ending is a Refusal. After it the outcome is decided once, on entry to CLOSING; CLOSING waits
briefly for the worker's finals, which alone know the whole count, and then settles and writes the terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import events
from .attempt import Attempt, AttemptState
from .books import Verdict
from .choice import Choice
from .ending import MOVABLE, write_refusal, write_terminal
from .events import Screening
from .outputs import Ack, Admit, Cancel, Output, Refusal, Screen
from .phase import Phase
from .placement import REROUTABLE, Placement
from .stream import Stream
from .terms import Terms


class Response:
    """One response. Not thread-safe: one owner calls `handle`."""

    __slots__ = (
        "_cause",
        "_ends_at",
        "_num_busy",
        "_num_moves",
        "_out",
        "_placement",
        "_queue_ends_at",
        "_refusal",
        "_stream",
        "_terms",
        "_verdict",
        "_wait_ends_at",
        "phase",
    )

    def __init__(self, terms: Terms, now: float) -> None:
        self._terms = terms
        self.phase = Phase.NEW
        self._placement = Placement(terms.num_choices)
        self._stream = Stream()
        self._ends_at = terms.ends_at(now)
        self._queue_ends_at: float | None = None
        self._wait_ends_at: float | None = None
        self._num_busy = self._num_moves = 0
        self._cause = ""
        self._refusal: Refusal | None = None
        self._verdict: Verdict | None = None
        self._out: list[Output] = []

    # ---- what the shell may ask --------------------------------------------------------------------------------------

    @property
    def created(self) -> bool:
        """Whether the client was given an identity."""
        return self._stream.num_events > 0

    @property
    def ended(self) -> bool:
        """Whether the client has had its ending."""
        return self.phase is Phase.ENDED

    @property
    def done(self) -> bool:
        """Ended, and no route answer is awaited that would have to be reported: the shell may forget it."""
        return self.ended and all(attempt.state is not AttemptState.ROUTING for attempt in self._placement.attempts)

    @property
    def attempt(self) -> int:
        """Number of the current attempt, 0 before the first; text of other attempts is not needed."""
        return len(self._placement.attempts)

    @property
    def next_deadline(self) -> float | None:
        """When a Tick is due; None if no deadline runs. May change with every `handle`."""
        if self.ended or self.phase is Phase.NEW:
            return None
        if self.phase is Phase.CLOSING:
            return self._wait_ends_at
        if self.phase is not Phase.QUEUED or self._queue_ends_at is None:
            return self._ends_at
        return min(self._ends_at, self._queue_ends_at + self._terms.queue_grace_s)

    def handle(self, *happened: events.Event, now: float) -> list[Output]:
        """Take what happened at time `now` (seconds, monotonic) and return what must be done, in order."""
        self._out = []
        for event in happened:
            _HANDLERS[type(event)](self, event, now)
        return self._out

    # ---- before the worker -------------------------------------------------------------------------------------------

    def _start(self, event: events.Start, now: float) -> None:
        if self.phase is Phase.NEW:
            self.phase = Phase.ADMITTING
            self._out.append(Admit())

    def _admitted(self, event: events.Admitted, now: float) -> None:
        if self.phase is Phase.ADMITTING:
            self._stream.screening = event.screening
            self._route()

    def _admit_refused(self, event: events.AdmitRefused, now: float) -> None:
        if self.phase is Phase.ADMITTING:
            self.phase = Phase.ENDED
            self._out.append(Refusal.of(event))

    def _route(self) -> None:
        self.phase = Phase.ROUTING
        self._placement.route(self._out)

    def _routed(self, event: events.Routed, now: float) -> None:
        attempt = self._placement.find(event.attempt)
        if attempt is None or attempt.state is not AttemptState.ROUTING:
            return
        attempt.decision = event.decision
        if self.phase is not Phase.ROUTING:
            self._placement.report(attempt, "cancelled", "", self._out)
            return
        ends_at = now + event.decision.queue_s
        self._queue_ends_at = ends_at if self._queue_ends_at is None else min(ends_at, self._queue_ends_at)
        if self._queue_ends_at <= now:
            self._give_up(Refusal("queue_deadline", "no replica could take it within the queue deadline"), now)
            return
        self.phase = Phase.QUEUED
        self._placement.submit(attempt, self._queue_ends_at - now, max(0.0, self._ends_at - now), self._out)

    def _route_refused(self, event: events.RouteRefused, now: float) -> None:
        attempt = self._placement.find(event.attempt)
        if attempt is None or attempt.state is not AttemptState.ROUTING:
            return
        attempt.advance(AttemptState.ENDED)
        if self.phase is Phase.ROUTING:
            fresh = Refusal(event.reason, event.detail, event.field, event.retry_after_s)
            self._give_up(self._refusal or fresh, now)  # "busy" says more than "no other replica"

    def _attempt_refused(self, event: events.AttemptRefused, now: float) -> None:
        attempt = self._placement.find(event.attempt)
        if attempt is None or attempt.state is not AttemptState.QUEUED:
            return
        self._placement.report(attempt, "refused", event.reason, self._out)
        refusal = Refusal.of(event)
        may_reroute = event.reason in REROUTABLE and self._num_busy < self._terms.max_busy_reroutes
        in_time = self._queue_ends_at is not None and now < self._queue_ends_at
        if may_reroute and in_time and not self.created:
            self._num_busy += 1
            self._refusal = refusal
            self._placement.exclude(attempt)
            self._route()
        else:
            self._give_up(refusal, now)

    # ---- the worker's stream -----------------------------------------------------------------------------------------

    def _accepted(self, event: events.Accepted, now: float) -> None:
        attempt = self._placement.find(event.attempt)
        if attempt is None or attempt.state is not AttemptState.QUEUED:
            return
        attempt.advance(AttemptState.RUNNING)
        attempt.num_cached = event.num_cached_tokens
        self.phase = Phase.STREAMING
        self._stream.open(attempt.number, self._out)

    def _tokens(self, event: events.Tokens, now: float) -> None:
        attempt = self._placement.find(event.attempt)
        if attempt is None or attempt.reached < AttemptState.RUNNING:
            return
        choice = attempt.choices[event.choice]
        if choice.final is not None or self.ended:  # what comes after the settlement is in no books
            return
        choice.num_received += event.num_tokens
        if attempt.state is not AttemptState.RUNNING or choice.reason or self.phase is not Phase.STREAMING:
            return
        if event.text:
            self._stream.show(event.attempt, choice, (event.text, event.num_shown, event.logprobs), self._out)
        if event.stop_at is not None:
            choice.reason, choice.cancelled = "stop", True
            choice.stop_at, choice.stop = event.stop_at, event.stop
            self._out.append(Cancel(attempt.number, choice.index, "stop", event.stop_at))
            self._end_text(attempt, choice, now)

    def _choice_final(self, event: events.ChoiceFinal, now: float) -> None:
        attempt = self._placement.find(event.attempt)
        if attempt is None or not attempt.submitted or attempt.choices[event.choice].final is not None:
            return
        if self.ended:
            self._out.append(Ack(attempt.number, attempt.num_generated, event.device_us, event.prefill))
            return
        choice = attempt.choices[event.choice]
        choice.final = event
        if attempt.state is AttemptState.ENDED or (self.phase is Phase.CLOSING and attempt.awaits_finals):
            return
        if self.phase is Phase.CLOSING:
            self._settle()
        elif attempt.state is AttemptState.QUEUED:
            self._fall(attempt, event.reason or "worker_lost", event.detail, now)
        elif not choice.reason:
            self._choice_ended(attempt, choice, event, now)

    def _choice_ended(self, attempt: Attempt, choice: Choice, event: events.ChoiceFinal, now: float) -> None:
        """A running choice ended at the worker."""
        if event.kind == "failed":
            self._fall(attempt, event.reason, event.detail, now)
        elif event.kind == "cancelled":
            self._close(Verdict("cancelled", event.reason, event.detail), now)
        else:
            choice.reason = event.kind
            if event.tail:
                tail = (event.tail, event.num_tail_shown, event.tail_logprobs)
                self._stream.show(event.attempt, choice, tail, self._out)
            self._end_text(attempt, choice, now)

    def _end_text(self, attempt: Attempt, choice: Choice, now: float) -> None:
        """No more text of this choice: finish it, or ask screening for its last word."""
        if self._stream.screening is Screening.NONE:
            self._finish(attempt, choice, now)
        else:
            self._out.append(Screen(attempt.number, choice.index, choice.num_screened_chars, "", final=True))

    def _finish(self, attempt: Attempt, choice: Choice, now: float) -> None:
        self._stream.finish(choice, choice.reason, self._out)
        if all(other.finished for other in attempt.choices):
            length = any(other.reason == "length" for other in attempt.choices)
            self._close(Verdict("incomplete", "length") if length else Verdict("completed", "stop"), now)

    # ---- faults ------------------------------------------------------------------------------------------------------

    def _attempt_lost(self, event: events.AttemptLost, now: float) -> None:
        attempt = self._placement.find(event.attempt)
        if attempt is None or not attempt.submitted or attempt.state is AttemptState.ENDED:
            return
        attempt.lost = True
        if self.phase is Phase.CLOSING:
            self._settle()
        elif not all(choice.reason for choice in attempt.choices):
            self._fall(attempt, event.reason, "the worker was lost", now)

    def _fall(self, attempt: Attempt, reason: str, detail: str, now: float) -> None:
        """The current attempt cannot go on: try another replica if nothing was shown, else give up."""
        in_time = now < self._ends_at and self._num_moves < self._terms.max_moves
        shown = any(choice.num_released_chars or choice.finished for choice in attempt.choices)
        if reason in MOVABLE and in_time and not shown:
            self._move(attempt, reason)
        elif self.phase is Phase.STREAMING:
            self._close(Verdict("failed", reason, detail), now)
        else:
            self._give_up(Refusal("no_replica", f"the replica failed before it accepted: {reason}"), now)

    def _move(self, attempt: Attempt, reason: str) -> None:
        self._cause = self._cause or reason
        self._num_moves += 1
        self._queue_ends_at = None
        self._placement.abandon(attempt, reason, self._out)
        self._route()

    def _decode_failed(self, event: events.DecodeFailed, now: float) -> None:
        choice = self._streaming_choice(event.attempt, event.choice)
        if choice is not None and not choice.reason:
            self._close(Verdict("failed", "decode_error", event.detail), now)

    def _client_gone(self, event: events.ClientGone, now: float) -> None:
        if not self.created:
            self._refuse(Refusal(event.reason))
        else:
            self._close(Verdict("cancelled", event.reason), now)

    def _gateway_stops(self, event: events.GatewayStops, now: float) -> None:
        self._cause = "gateway_lost"
        self._give_up(Refusal("draining", "this gateway stopped"), now)

    def _tick(self, event: events.Tick, now: float) -> None:
        if (due := self.next_deadline) is None or now < due:
            return
        attempt = self._placement.current
        if self.phase is Phase.CLOSING:
            self._settle()
        elif now >= self._ends_at and self.created:
            self._close(Verdict("failed", "deadline", "the total deadline passed"), now)
        elif now >= self._ends_at:
            self._refuse(Refusal("deadline", "the total deadline passed before a replica accepted"))
        elif attempt is not None:
            # The worker is alive, or it would be lost by now, but never answered: that is missed progress.
            self._placement.cancel(attempt, "deadline", self._out)
            self._placement.report(attempt, "failed", "queue_deadline", self._out)
            self._give_up(Refusal("queue_deadline", "the worker did not answer within the queue deadline"), now)

    # ---- screening ---------------------------------------------------------------------------------------------------

    def _streaming_choice(self, number: int, index: int) -> Choice | None:
        """A choice of the current attempt that the client still hears of."""
        attempt = self._placement.find(number)
        if attempt is None or attempt.state is not AttemptState.RUNNING or self.phase is not Phase.STREAMING:
            return None
        choice = attempt.choices[index]
        return None if choice.finished else choice

    def _screen_released(self, event: events.ScreenReleased, now: float) -> None:
        choice = self._streaming_choice(event.attempt, event.choice)
        if choice is None or self._stream.screening is Screening.NONE:
            return
        choice.flagged = choice.flagged or event.flagged
        self._stream.release(choice, event.released_up_to, event.redactions, self._out)
        if choice.reason and choice.num_released_chars == choice.num_screened_chars:
            choice.screened = True
            self._finish(self._placement.attempts[-1], choice, now)

    def _screen_blocked(self, event: events.ScreenBlocked, now: float) -> None:
        choice = self._streaming_choice(event.attempt, event.choice)
        if choice is not None and self._stream.screening is not Screening.NONE:
            self._stream.release(choice, event.released_up_to, event.redactions, self._out)
            self._close(Verdict("incomplete", "content_filter", event.detail), now)

    def _policy_lost(self, event: events.PolicyLost, now: float) -> None:
        if self.phase is Phase.ADMITTING:
            self._refuse(Refusal("policy_unavailable", "the policy service does not answer"))
        if self.phase is not Phase.STREAMING:
            return
        attempt = self._placement.attempts[-1]
        begun = any(choice.num_screened_chars or choice.reason for choice in attempt.choices)
        if not begun or self._stream.screening is Screening.NONE:
            return
        if self._stream.screening is Screening.FAIL_CLOSED:
            self._close(Verdict("failed", "policy_lost", "output screening was lost"), now)
            return
        self._stream.screening = Screening.NONE
        for choice in attempt.choices:
            self._stream.release(choice, choice.num_screened_chars, (), self._out)
            if choice.reason and not choice.finished:
                self._finish(attempt, choice, now)

    # ---- endings -----------------------------------------------------------------------------------------------------

    def _give_up(self, refusal: Refusal, now: float) -> None:
        """No replica takes it: a status before `created`; after it, the first attempt's reason."""
        if self.created:
            self._close(Verdict("failed", self._cause, refusal.detail), now)
        else:
            self._refuse(refusal)

    def _refuse(self, refusal: Refusal) -> None:
        """End before `created`. Whatever policy may have reserved is released first."""
        if self.ended:
            return
        begun, self.phase = self.phase is not Phase.NEW, Phase.ENDED
        if begun:
            write_refusal(self._terms, self._placement, refusal, self._out)
        else:
            self._out.append(refusal)

    def _close(self, verdict: Verdict, now: float) -> None:
        """Decide the outcome, once; then wait for the finals only if some are still to come."""
        if self.phase >= Phase.CLOSING:
            return
        self.phase, self._verdict = Phase.CLOSING, verdict
        current = self._placement.attempts[-1]
        self._placement.cancel(current, verdict.cancel_reason, self._out)
        if current.awaits_finals:
            self._wait_ends_at = self._terms.waits_until(now, self._ends_at)
        else:
            self._settle()

    def _settle(self) -> None:
        assert self._verdict is not None, "settled before the outcome was decided"
        self.phase = Phase.ENDED
        write_terminal(self._terms, self._placement, self._stream, self._verdict, self._out)


_HANDLERS: dict[type, Callable[[Response, Any, float], None]] = {
    events.Start: Response._start,
    events.ClientGone: Response._client_gone,
    events.GatewayStops: Response._gateway_stops,
    events.Admitted: Response._admitted,
    events.AdmitRefused: Response._admit_refused,
    events.ScreenReleased: Response._screen_released,
    events.ScreenBlocked: Response._screen_blocked,
    events.PolicyLost: Response._policy_lost,
    events.Routed: Response._routed,
    events.RouteRefused: Response._route_refused,
    events.Accepted: Response._accepted,
    events.AttemptRefused: Response._attempt_refused,
    events.Tokens: Response._tokens,
    events.ChoiceFinal: Response._choice_final,
    events.AttemptLost: Response._attempt_lost,
    events.DecodeFailed: Response._decode_failed,
    events.Tick: Response._tick,
}
