"""All choices that one gateway screens over one stream. Knows rules and text; knows no quota."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from dataclasses import dataclass, field

from headrace.v1 import policy_pb2 as pb
from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from headrace_kit.lifecycle import cancel_and_wait
from headrace_policy.screening.gate import Gate
from headrace_policy.screening.jury import Jury
from headrace_policy.screening.ruleset import Ruleset
from headrace_policy.screening.screener import Decision
from headrace_policy.screening.windows import WINDOW_S

_VERDICTS = {
    "": pb.ScreenVerdict.VERDICT_UNSPECIFIED,
    "passed": pb.ScreenVerdict.VERDICT_PASSED,
    "flagged": pb.ScreenVerdict.VERDICT_FLAGGED,
    "blocked": pb.ScreenVerdict.VERDICT_BLOCKED,
    "lost": pb.ScreenVerdict.VERDICT_LOST,
}
UNKNOWN_TENANT = "tenant-is-gone"
_verdicts = telemetry.counter("screened_total", "Choices by what screening said at their end", ["verdict"])


@dataclass
class Seat:
    """One choice of one response, and the task that asks guards about it while any of it is unasked."""

    response_id: str
    choice: int
    gate: Gate
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    asking: "asyncio.Task[None] | None" = None
    counted: bool = False


class Floor:
    """``rules_of`` gives a tenant's rules, None if there is no such tenant."""

    def __init__(
        self,
        rules_of: Callable[[str], Ruleset | None],
        jury: Jury,
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules_of, self._jury, self._window_s, self._clock = rules_of, jury, window_s, clock
        self._rules: dict[str, Ruleset | None] = {}
        self._seats: dict[str, dict[int, Seat]] = {}
        self._verdicts: asyncio.Queue[pb.ScreenVerdict | BaseException | None] = asyncio.Queue()

    async def answer(self, requests: AsyncIterable[pb.ScreenRequest]) -> AsyncGenerator[pb.ScreenVerdict, None]:
        """Verdicts on what is received, until there is no more; raises invalid_argument."""
        reading = asyncio.create_task(self._read(requests))
        try:
            while (verdict := await self._verdicts.get()) is not None:
                if isinstance(verdict, BaseException):
                    raise verdict
                yield verdict
            await reading
        finally:
            await cancel_and_wait(reading, *self._asking())

    async def _read(self, requests: AsyncIterable[pb.ScreenRequest]) -> None:
        try:
            async for request in requests:
                self._take(request)
            while asking := self._asking():
                await asyncio.wait(asking)
        finally:
            self._verdicts.put_nowait(None)

    def _take(self, request: pb.ScreenRequest) -> None:
        if request.close:
            self._rules.pop(request.response_id, None)
            for seat in self._seats.pop(request.response_id, {}).values():
                if seat.asking is not None:
                    seat.asking.cancel()
            return
        rules = self._of(request)
        if rules is None:
            gone = Seat(request.response_id, request.choice, Gate(Ruleset()))
            self._tell(gone, Decision(0, "blocked", UNKNOWN_TENANT))
            return
        seat = self._seat(request, rules)
        if request.offset != seat.gate.received:
            message = f"text of this choice goes on at {seat.gate.received}, not at {request.offset}"
            raise HeadraceError("invalid_argument", message, field="offset")
        self._tell(seat, seat.gate.feed(request.text, request.final, self._clock()))
        seat.changed.set()
        if seat.asking is None and not seat.gate.ended and seat.gate.windows.num_waiting:
            seat.asking = asyncio.create_task(self._ask(seat))
            seat.asking.add_done_callback(self._asked)

    def _of(self, request: pb.ScreenRequest) -> Ruleset | None:
        if request.response_id not in self._rules:
            if not request.response_id or not request.tenant:
                message = "the first message of a response names it and its tenant"
                raise HeadraceError("invalid_argument", message, field="tenant")
            self._rules[request.response_id] = self._rules_of(request.tenant)
        return self._rules[request.response_id]

    def _seat(self, request: pb.ScreenRequest, rules: Ruleset) -> Seat:
        seats = self._seats.setdefault(request.response_id, {})
        if request.choice not in seats:
            gate = Gate(rules, self._window_s)
            seats[request.choice] = Seat(request.response_id, request.choice, gate)
        return seats[request.choice]

    async def _ask(self, seat: Seat) -> None:
        """Window after window, while there is text that no guard was asked about."""
        gate = seat.gate
        while not gate.ended and (wait_s := gate.windows.due_in(self._clock())) is not None:
            if wait_s > 0:
                seat.changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await seat.changed.wait()
                continue
            question = gate.windows.question(self._clock())
            opinion = await self._jury.hear(gate.guards, question.text)
            if not gate.ended:
                self._tell(seat, gate.judged(question, opinion))
        seat.asking = None

    def _asking(self) -> "list[asyncio.Task[None]]":
        return [seat.asking for seats in self._seats.values() for seat in seats.values() if seat.asking is not None]

    def _asked(self, task: "asyncio.Task[None]") -> None:
        """A fault of ours ends the stream: text that nobody judges any more must not wait for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._verdicts.put_nowait(error)

    def _tell(self, seat: Seat, decision: Decision) -> None:
        if not seat.counted and (decision.verdict in ("blocked", "lost") or seat.gate.done):
            seat.counted = True
            _verdicts.labels(decision.verdict).inc()
        self._verdicts.put_nowait(
            pb.ScreenVerdict(
                response_id=seat.response_id,
                choice=seat.choice,
                released_up_to=decision.released_up_to,
                verdict=_VERDICTS[decision.verdict],
                redactions=[
                    pb.Redaction(start=r.start, end=r.end, replacement=r.replacement) for r in decision.replaced
                ],
                rule=decision.rule,
            )
        )
