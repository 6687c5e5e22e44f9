"""The engine: submit, cancel, step. The only place where plans are made, run and settled; one thread drives it.

    submit --> runner.open --> scheduler --> plan --> runner.launch ... collect --> scheduler.complete --> EngineOutput

Knows neither the wire nor processes; a GPU machine runs it with PYTHONPATH alone.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace_worker.execution.openings import Openings
from headrace_worker.execution.runner import GroupTimes, Opened, Opening, Ran, Rejected, Runner
from headrace_worker.execution.step_log import SequenceNotes, StepLog, StepSplit
from headrace_worker.execution.step_times import StepTimes, load_of
from headrace_worker.perf.step import StepLoad
from headrace_worker.perf.step_model import StepModel
from headrace_worker.scheduling.audit import audit
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.events import Accepted, Event, Finished, Refused
from headrace_worker.scheduling.load import Load, report_load
from headrace_worker.scheduling.page_events import PageEventBatch, PageKey
from headrace_worker.scheduling.plan import Plan
from headrace_worker.scheduling.request import Request
from headrace_worker.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)

# A step is overdue after four times its predicted time, but never before this.
LEAST_PATIENCE_S = 10.0
_OVERDUE_FACTOR = 4.0
# How often a state that cannot move by itself is looked at again, if nothing says when.
_LOOK_AGAIN_S = 0.05
_LOOK_AT_OPENINGS_S = 0.005
_TIMES_S = 1.0


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What came of one move. `pieces` go with Accepted events, `device_s` with Finished ones, by handle."""

    step: int
    events: tuple[Event, ...]
    load: Load
    pieces: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    device_s: dict[int, float] = field(default_factory=dict)
    pages: PageEventBatch | None = None
    # The fitted step times, now and then.
    step_model: StepModel | None = None
    # Equations that did not balance when the engine went idle.
    imbalances: tuple[str, ...] = ()
    # Of the group's ranks since the output before.
    times: GroupTimes = field(default_factory=GroupTimes)
    # Where the step's time went; None if no step ended, or it could not move.
    split: StepSplit | None = None
    # What the step computed, now and then: for what the resources are used.
    computed: StepLoad | None = None
    # What choices that ended saw of their steps, by handle.
    notes: dict[int, SequenceNotes] = field(default_factory=dict)


class _Launched(NamedTuple):
    """A plan in flight, and since when."""

    plan: Plan
    at_s: float


class Engine:
    """Owns scheduler and runner. `clock` gives seconds; `due_s` is when the step under way should be over."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        times: StepTimes,
        *,
        clock: Callable[[], float] = time.monotonic,
        audits: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self.due_s = math.inf
        self._runner = runner
        self._times = times
        self._clock = clock
        self._audits = audits
        self._step = 0
        self._in_flight: deque[_Launched] = deque()
        self._ended_s = -math.inf
        self._group_times = GroupTimes()
        self._log = StepLog()
        self._split: StepSplit | None = None
        self._last_plan: Plan | None = None
        self._wake_s: float | None = None
        self._moved = False
        self._openings = Openings()
        # Requests that the runner has opened and no plan has admitted: handle of choice 0 -> choices left.
        self._opened: dict[int, int] = {}
        self._pieces: dict[int, tuple[bytes, ...]] = {}
        self._device_s: dict[int, float] = {}
        self._rejected: list[Event] = []
        self._last_load: Load | None = None
        self._times_told_s = -math.inf

    @property
    def has_work(self) -> bool:
        return not self.scheduler.is_idle or len(self._openings) > 0

    @property
    def step_model(self) -> StepModel:
        """How long steps take here, as learnt so far."""
        return self._times.model

    def submit(self, request: Request) -> None:
        """Queue a request; whatever comes of it is an event of the next step."""
        opened = self._runner.open(request) if request.num_prompt else None
        if isinstance(opened, Opening):
            self._openings.add(request, opened, self._clock())
        else:
            self._enter(request, opened)

    def cancel(self, cancel: Cancel) -> None:
        """Takes effect before the next step."""
        self._openings.cancel(cancel)
        self.scheduler.cancel(cancel)
        self._moved = True

    def received(self, handle: int) -> None:
        """The pages that a request waited for are in the pool's images, checked."""
        self.scheduler.received(handle)
        self._moved = True

    def receive_failed(self, handle: int, reason: str) -> None:
        """They will not come: the request fails; its pages stay in quarantine until `end_transfer`."""
        self.scheduler.receive_failed(handle, reason, self._clock())
        self._moved = True

    def end_transfer(self, handle: int) -> None:
        """No other machine reads or writes the request's pages any more."""
        self.scheduler.end_transfer(handle)
        self._moved = True

    def flush(self, epoch: int) -> None:
        """Forget every cached page; what runs keeps its own."""
        self.scheduler.clear_cache(epoch)
        self._moved = True

    def list_pages(self) -> tuple[int, int, tuple[PageKey, ...]]:
        """(epoch, number of the next page event, every page that can be hit before that event)."""
        pool = self.scheduler.pool
        return pool.events.epoch, pool.events.next_seq, tuple(pool.keys())

    def step(self) -> EngineOutput | None:
        """One move: plan and launch what can be in flight, then settle the oldest step.

        None if nothing happened that anyone could see.
        """
        now = self._clock()
        self._moved, self._wake_s = False, None
        self._settle_openings(now)
        began_s = now
        while (
            len(self._in_flight) < self.scheduler.limits.max_in_flight
            and (plan := self.scheduler.plan(now)) is not None
        ):
            began_s = self._launch(plan, began_s)
        if not self._in_flight:
            self._log.rested()
            return self._report(self.scheduler.take_events(), now)
        ran = self._runner.collect()
        return self._settle(self._in_flight.popleft(), ran)

    def wait_s(self) -> float | None:
        """How long the loop may sleep when no command comes: 0 not at all, None for ever."""
        if self._moved:
            return 0.0
        if not self.has_work:
            return None
        now = self._clock()
        if self._openings:
            return _LOOK_AT_OPENINGS_S
        times = [at for at in (self._wake_s, self.scheduler.next_deadline_s()) if at is not None]
        return max(0.0, min(times) - now) if times else _LOOK_AGAIN_S

    def _launch(self, plan: Plan, began_s: float) -> float:
        """When it was launched; it had been planned since `began_s`."""
        now = self._clock()
        self._log.planned(now - began_s)
        for request in plan.admitted:
            self._opened.pop(request.handle, None)
        patience_s = max(LEAST_PATIENCE_S, _OVERDUE_FACTOR * self._times.predict(plan))
        self.due_s = now + patience_s * (1 + len(self._in_flight))
        self._in_flight.append(_Launched(plan, now))
        self._runner.launch(plan)
        return now

    def _settle(self, launched: _Launched, ran: Ran) -> EngineOutput | None:
        """What a step brought. While it was in flight it was alone on the device only since the one before ended."""
        done, plan = self._clock(), launched.plan
        if not self._in_flight:
            self.due_s = math.inf
        self._step = plan.step
        began_s, self._ended_s = max(launched.at_s, self._ended_s), done
        self._attribute(plan, done - began_s)
        self._group_times += ran.times
        split = self._log.ended(plan, (began_s, done), ran.sample_s, ran.times.collective_s)
        if ran.wake_s is None:
            self._split, self._last_plan = split, plan
        else:
            self._log.rested()
        if ran.wake_s is None:
            # In a pipeline a step takes its time through all stages; overlapped, it waits for the one before.
            waited_from_s = began_s if self.scheduler.limits.overlap else launched.at_s
            self._times.observe(plan, done - waited_from_s, done)
        self._moved, self._wake_s = ran.wake_s is None, ran.wake_s
        return self._report(self.scheduler.complete(ran.result, done), done)

    def _enter(self, request: Request, opened: Opened | Rejected | None) -> None:
        """Into the waiting room, unless the runner cannot run it."""
        if isinstance(opened, Rejected):
            key = request.handle, request.response_id, request.attempt
            self._rejected.append(
                Refused(*key, opened.reason, opened.detail, opened.field or None, retry_after_s=opened.retry_after_s)
            )
            return
        self._opened[request.handle] = request.n
        if opened is not None and opened.pieces:
            self._pieces[request.handle] = opened.pieces
        self.scheduler.submit(request, self._clock())
        self._moved = True

    def _settle_openings(self, now: float) -> None:
        for request, outcome, cancels in self._openings.settle(now) if self._openings else ():
            if isinstance(outcome, Rejected):
                self._runner.close((request.handle,))
            self._enter(request, outcome)
            for cancel in cancels:
                self.scheduler.cancel(cancel)

    def _attribute(self, plan: Plan, took_s: float) -> None:
        """Share the step's time among its rows by their tokens."""
        per_token_s = took_s / sum(len(row.token_ids) for row in plan.rows)
        for row in plan.rows:
            self._device_s[row.handle] = self._device_s.get(row.handle, 0.0) + per_token_s * len(row.token_ids)

    def _report(self, events: list[Event], now: float) -> EngineOutput | None:
        events = [*self._rejected, *events]
        self._rejected.clear()
        pieces: dict[int, tuple[bytes, ...]] = {}
        device_s: dict[int, float] = {}
        notes: dict[int, SequenceNotes] = {}
        for event in events:
            if isinstance(event, Accepted) and event.handle in self._pieces:
                pieces[event.handle] = self._pieces.pop(event.handle)
            elif isinstance(event, Refused):
                self._forget(event.handle)
            elif isinstance(event, Finished):
                device_s[event.handle] = self._device_s.pop(event.handle, 0.0)
                notes[event.handle] = self._log.take(event.handle)
                self._note_end(event.handle - event.choice)
        batch = self.scheduler.pool.events.drain()
        load = report_load(self.scheduler, now)
        if not events and not batch.events and load == self._last_load:
            return None
        self._last_load = load
        pages = batch if batch.events or batch.lost else None
        imbalances = self._imbalances(events)
        times, self._group_times = self._group_times, GroupTimes()
        split, self._split = self._split, None
        model, computed = self._news_of_times(now, split)
        told = (pages, model, imbalances, times, split, computed, notes)
        return EngineOutput(self._step, tuple(events), load, pieces, device_s, *told)

    def _news_of_times(self, now: float, split: StepSplit | None) -> tuple[StepModel | None, StepLoad | None]:
        """Not with every step: the model, and the step that it was last fitted on."""
        if now - self._times_told_s < _TIMES_S:
            return None, None
        self._times_told_s = now
        plan = None if split is None else self._last_plan
        return self._times.model, None if plan is None else load_of(plan)

    def _note_end(self, first_handle: int) -> None:
        """A choice of an accepted request ended; if no plan ever told the runner, it must hear it from us."""
        if first_handle in self._opened:
            self._opened[first_handle] -= 1
            if not self._opened[first_handle]:
                self._forget(first_handle)

    def _forget(self, handle: int) -> None:
        self._pieces.pop(handle, None)
        if self._opened.pop(handle, None) is not None:
            self._runner.close((handle,))

    def _imbalances(self, events: list[Event]) -> tuple[str, ...]:
        """The idle audit: what does not balance is reported, not hidden; the engine goes on."""
        if not self._audits or self.has_work or not any(isinstance(event, Finished | Refused) for event in events):
            return ()
        found = tuple(f"{item.what}: expected {item.expected}, is {item.actual}" for item in audit(self.scheduler))
        return found + ((f"opened requests when idle: {len(self._opened)}",) if self._opened else ())
