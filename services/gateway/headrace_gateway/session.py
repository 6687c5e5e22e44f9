"""The shell around one response's state machine: carries out what the machine asks, and tells it what happened.

Holds no rule of the contract: those are in `lifecycle`. One session has one consumer, who waits until it is `ready`
and then takes what is there, until `is_over`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from time import monotonic  # of the same origin as the loop's clock, which may count whole milliseconds
from typing import Any

from headrace.v1 import policy_pb2, routing_pb2
from headrace_gateway import messages
from headrace_gateway.arrival import Arrival
from headrace_gateway.attempt_reader import AttemptReader
from headrace_gateway.lifecycle import Response, Terms, events, outputs
from headrace_gateway.meter import Meter
from headrace_gateway.prepared import Prepared
from headrace_gateway.services import Services
from headrace_gateway.upstreams.worker_link import WorkerLink
from headrace_kit import tracing
from headrace_kit.errors import HeadraceError
from headrace_kit.lifecycle import report_crash

_MAX_AHEAD = 4  # events that wait before texts are joined
_MAX_BATCH_CHARS = 16 * 1024  # no batch goes on beyond it: what the consumer writes is not counted as waiting

ClientEvent = outputs.Created | outputs.Delta | outputs.ChoiceFinished | outputs.Terminal


class Session:
    """One response from admission to settlement. `take` raises HeadraceError if it ends before `created`."""

    def __init__(
        self, response_id: str, prepared: Prepared, services: Services, terms: Terms, arrival: Arrival
    ) -> None:
        self.response_id, self.prepared = response_id, prepared
        self.buffered_bytes = 0
        self.is_over = False
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._machine = Response(terms, self._loop.time())
        self._ends_at = terms.ends_at(self._loop.time())
        self._reservation = messages.reservation(response_id, prepared, services.gateway_id)
        self._routes: dict[int, routing_pb2.RouteResponse] = {}
        self._links: dict[int, WorkerLink] = {}
        self._queue: deque[ClientEvent | outputs.Refusal] = deque()
        self._num_dropped = self._num_late = 0
        self._is_feeding = self._is_slow = False
        self._awaited: asyncio.Future[None] | None = None
        self._speaks = self._is_paced = False
        self._after_settling: list[ClientEvent | outputs.Refusal] | None = None
        self._meter = Meter(response_id, prepared, arrival, services.instruments)
        self._trace = self._meter.trace
        self._is_left = self._is_shown = False
        self._ending: outputs.Terminal | outputs.Refusal | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def opened(self, gate: tracing.TraceContext, authenticated_at: float) -> None:
        """What happened before there was a session."""
        times = self._trace.times
        times.gate, times.authenticated_at, times.prepared_at = gate, authenticated_at, monotonic()

    # ---- the consumer ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts it, once."""
        self._services.sessions.started(self)
        self.feed(events.Start())

    async def ready(self) -> None:
        """Waits until there is something to take."""
        while not self._queue:
            self._awaited, self._is_paced = self._loop.create_future(), False
            await self._awaited

    def take(self) -> list[ClientEvent]:
        """What the client sees next, in order, not counted as waiting any more. Created comes first and alone."""
        first = self._queue[0]
        if isinstance(first, outputs.Refusal):
            self._meter.refused(first)
            self._finish()
            raise messages.refusal_error(first)
        if isinstance(first, outputs.Created):
            self._queue.popleft()
            return [first]
        batch: list[Any] = []
        num_chars = 0
        while self._queue and num_chars < _MAX_BATCH_CHARS:
            event = self._queue.popleft()
            batch.append(event)
            if isinstance(event, outputs.Delta):
                num_chars += len(event.text)
        if num_chars:
            self._services.buffers.shrank(self, num_chars)
            self._meter.text(monotonic())
        if isinstance(batch[-1], outputs.Terminal):
            self.is_over = True
            self._finish()
        if self._num_dropped:
            batch = [_numbered(event, event.sequence_number - self._num_dropped) for event in batch]
        return batch

    @property
    def joins_texts(self) -> bool:
        """Whether tokens that come together make one text: the client reads more slowly than the worker writes."""
        return len(self._queue) > _MAX_AHEAD

    def leave(self, reason: str) -> None:
        """The client went away, or cancelled; nothing happens to a response that ended."""
        self.feed(events.ClientGone(reason))
        self._services.buffers.shrank(self, self.buffered_bytes)
        self._is_left = True
        if self._is_shown:
            self._finish()

    def stop(self) -> None:
        """This gateway ends before the response does; the client reads that as its terminal."""
        self.feed(events.GatewayStops())

    def _finish(self) -> None:
        if self._ending is not None:
            self._meter.finish(self._ending, self.snapshot_version, monotonic())

    def _end_shown(self) -> None:
        # The last word waits for its reader, or has none any more.
        self._is_shown = True
        if self._is_left:
            self._finish()

    def end_slow_client(self) -> None:
        """The process needs the memory: this stream's client reads too slowly, and loses what it has not read."""
        self._is_slow = True
        if not self._is_feeding:
            self._drop_and_end()

    def _drop_and_end(self) -> None:
        self._is_slow = False
        if self._machine.ended:
            return  # its terminal stands, and what waits before it is bounded by its declared output
        kept = [event for event in self._queue if isinstance(event, outputs.Created)]
        self._num_dropped += len(self._queue) - len(kept)
        self._queue = deque(kept)
        self.feed(events.ClientGone("slow_client"))

    # ---- the machine -------------------------------------------------------------------------------------------------

    def feed(self, event: events.Event) -> None:
        """Tells the machine what happened and does what it asks."""
        self.feed_all((event,))

    def feed_all(self, happened: Iterable[events.Event]) -> None:
        """The same for what happened together."""
        self._is_feeding = True
        num_chars, is_text_only = 0, True
        for output in self._machine.handle(*happened, now=self._loop.time()):
            if isinstance(output, outputs.Delta):
                num_chars += len(output.text)
                self._show(output)
            else:
                is_text_only = False
                _CARRY_OUT[type(output)](self, output)
        if num_chars:
            self._services.buffers.grew(self, num_chars)
        self._is_feeding = False
        if self._is_slow:
            self._drop_and_end()
        elif num_chars and is_text_only:
            return  # a response that streams goes on: no deadline has changed
        self._arm_timer()
        if self._machine.ended:
            self._services.sessions.ended(self)
            self._services.screen.close(self, self._machine.attempt)

    @property
    def attempt(self) -> int:
        return self._machine.attempt

    @property
    def created(self) -> bool:
        return self._machine.created

    @property
    def tenant(self) -> str:
        return self.prepared.identity.tenant

    @property
    def snapshot_version(self) -> int:
        return self._services.snapshot_version

    def belongs_to(self, tenant_digest: bytes) -> bool:
        return self.prepared.identity.tenant_digest == tenant_digest

    def _arm_timer(self) -> None:
        due = self._machine.next_deadline
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._tick)
        self._due = due

    def _tick(self) -> None:
        self._timer = self._due = None
        self.feed(events.Tick())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        report_crash("session", task)

    # ---- to the client -----------------------------------------------------------------------------------------------

    def _begin(self, created: outputs.Created) -> None:
        self._services.books.created()
        self._show(created)

    def _refuse(self, refusal: outputs.Refusal) -> None:
        if self._after_settling is None:  # else its reservation was settled
            self._services.books.declined()
        self._ending = refusal
        self._show(refusal)
        if self._after_settling is None:
            self._end_shown()

    def _end(self, terminal: outputs.Terminal) -> None:
        self._services.books.ended(terminal.kind)
        self._meter.ended(terminal)
        self._ending = terminal
        self._show(terminal)

    def _show(self, event: ClientEvent | outputs.Refusal) -> None:
        if self._after_settling is not None:
            self._after_settling.append(event)
            return
        self._queue.append(event)
        if self._awaited is None or self._awaited.done():
            return
        if not isinstance(event, outputs.Delta):
            self._awaited.set_result(None)
        elif not self._speaks:  # the first text never waits
            self._speaks = True
            self._awaited.set_result(None)
        elif not self._is_paced:
            self._is_paced = True
            self._services.pace.wake(self._awaited)

    def _settle(self, output: outputs.Settle) -> None:
        """What follows waits until policy has confirmed, or a moment has passed."""
        self._services.renewals.release(self.response_id)
        self._services.books.settled()
        self._after_settling = []
        settlement = messages.settlement(output.settlement, self._reservation, self.snapshot_version)
        settlement.retry_of = self.prepared.request.retry_of
        now = monotonic()
        self._meter.keeps_trace(failed=output.settlement.kind == "failed", now=now)
        self._start(self._settle_then_show(settlement, self._trace.settling(now)))

    async def _settle_then_show(self, settlement: policy_pb2.SettleRequest, span: tracing.TraceContext) -> None:
        tracing.enter(span)
        answer = None
        try:
            answer = await self._services.settler.settle(settlement)
        finally:  # whatever becomes of its books, a response ends
            self._trace.settled(None if answer is None else answer.cost, monotonic())
            waiting, self._after_settling = self._after_settling or [], None
            for event in waiting:
                self._show(event)
            self._end_shown()

    # ---- to policy ---------------------------------------------------------------------------------------------------

    def _admit(self, _: outputs.Admit) -> None:
        self._start(self._ask_policy())

    async def _ask_policy(self) -> None:
        request = messages.admit_request(self._reservation, self.prepared)
        tracing.enter(self._trace.times.gate)
        try:
            answer = await self._services.policy.admit(request)
        except HeadraceError as error:
            if error.reason == "policy_unavailable":  # it may have reserved: what it holds must be released
                self.feed(events.PolicyLost())
            else:
                self.feed(events.AdmitRefused(error.reason, error.message, error.field or "", error.retry_after_s))
            return
        if not answer.admitted:
            wait_s = answer.retry_after_ms / 1000 if answer.retry_after_ms else None
            self.feed(events.AdmitRefused(answer.reason, answer.message, "", wait_s))
            return
        self._reservation = answer.reservation
        self.prepared.rate_limits.extend(answer.rate_limits)
        if not self._machine.ended:
            self._services.renewals.hold(answer.reservation)
        self.feed(events.Admitted(messages.screening(answer)))

    def _screen(self, output: outputs.Screen) -> None:
        self._services.screen.send(self, output)

    def _screen_close(self, output: outputs.ScreenClose) -> None:
        self._services.screen.close(self, output.attempt)

    # ---- to the router -----------------------------------------------------------------------------------------------

    def _route(self, output: outputs.Route) -> None:
        self._start(self._ask_router(output, self._trace.routing(output.attempt, monotonic())))

    async def _ask_router(self, output: outputs.Route, span: tracing.TraceContext) -> None:
        tracing.enter(span)
        left_s = max(0.001, self._ends_at - self._loop.time())
        request = messages.route_request(self.response_id, self.prepared, output, left_s)
        try:
            answer = await self._services.router.route(request, left_s)
        except HeadraceError as error:
            wait_s = error.retry_after_s
            self._trace.routed(output.attempt, None, monotonic())
            self.feed(events.RouteRefused(output.attempt, error.reason, error.message, error.field or "", wait_s))
            return
        self._routes[output.attempt] = answer
        self._trace.routed(output.attempt, answer, monotonic())
        self.feed(events.Routed(output.attempt, messages.decision(answer)))

    def _report(self, output: outputs.Report) -> None:
        now, went_wrong = monotonic(), output.outcome in ("lost", "failed", "refused")
        self._trace.reported(output, now)
        message = messages.outcome(self.response_id, output, self._meter)
        if self._meter.keeps_trace(failed=went_wrong, now=now):
            message.traceparent = self._trace.root._replace(sampled=True).header
        self._services.router.report(message)

    # ---- to the worker -----------------------------------------------------------------------------------------------

    def _submit(self, output: outputs.Submit) -> None:
        route = self._routes[output.attempt]
        submit = messages.submit(self.response_id, self.prepared, output, route)
        submit.gateway_id = self._services.gateway_id
        submit.snapshot_version = self.snapshot_version
        submit.reservation = self._reservation.SerializeToString()
        submit.traceparent = self._trace.attempt(output.attempt).span.header
        link = self._links[output.attempt] = self._services.workers.link(route.replica.endpoint)
        link.submit(submit, AttemptReader(self._trace.attempt(output.attempt), self.prepared, self))

    def _cancel(self, output: outputs.Cancel) -> None:
        self._links[output.attempt].cancel(messages.cancel(self.response_id, self.prepared, output))

    def _acknowledge(self, output: outputs.Ack) -> None:
        traced = self._trace.is_kept and not self._trace.attempt(output.attempt).is_told
        self._links[output.attempt].acknowledge(
            self.response_id, output.attempt, traced=traced, num_settled=output.num_settled
        )
        if output.late_device_us or output.late_prefill is not None:
            assert self._ending is not None, "what is late comes after the ending"
            self._num_late += 1
            route = self._routes[output.attempt]
            late = messages.late(self._reservation, output, route, self._ending, self._num_late)
            self._start(self._settle_late(late))

    async def _settle_late(self, late: policy_pb2.SettleRequest) -> None:
        await self._services.settler.settle(late)


def _numbered(event: ClientEvent, number: int) -> ClientEvent:
    """The same event under another number; Created is always the first."""
    if isinstance(event, outputs.Delta):
        return event._replace(sequence_number=number)
    return replace(event, sequence_number=max(0, number))


_CARRY_OUT: dict[type, Callable[[Session, Any], None]] = {
    outputs.Created: Session._begin,
    outputs.Delta: Session._show,
    outputs.ChoiceFinished: Session._show,
    outputs.Terminal: Session._end,
    outputs.Refusal: Session._refuse,
    outputs.Settle: Session._settle,
    outputs.Admit: Session._admit,
    outputs.Screen: Session._screen,
    outputs.ScreenClose: Session._screen_close,
    outputs.Route: Session._route,
    outputs.Report: Session._report,
    outputs.Submit: Session._submit,
    outputs.Cancel: Session._cancel,
    outputs.Ack: Session._acknowledge,
}
