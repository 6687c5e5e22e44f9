"""Reads the books of every process and says whether they balance, when asked and now and then by itself."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import grpc

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, policy_pb2
from headrace_controlplane.audit import Equation, Fleet, Process, Reading, Tokens, audit, missing
from headrace_controlplane.lifetimes import Lifetimes
from headrace_controlplane.peers import Peers
from headrace_controlplane.questions import Questions
from headrace_controlplane.registry import Registry
from headrace_controlplane.roll_call import RollCall
from headrace_controlplane.tallies import Tallies
from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError

log = logging.getLogger(__name__)
EVERY_S = 60.0
_ASK_S = 5.0
_TRIES, _BETWEEN_S = 6, 1.0
# Whoever says nothing is waited for each time.
_LONGEST_S, _LONGEST_WITHOUT_ALL_S = 45.0, 8.0
_READINGS, _APART_S = 4, 0.1
# Rows that were settled by another clock a moment before the last reading ended are read again.
_OVERLAP_MS = 10_000
_unbalanced = telemetry.gauge("audit_unbalanced", "Equations of the last audit that did not balance")
_audits = telemetry.counter("audits_total", "Audits of the fleet by result", ["result"])
_SERVICES = ("gateway", "policy", "router")


@dataclass(frozen=True)
class Sources:
    """Who is asked."""

    roll_call: RollCall
    peers: Peers
    questions: Questions
    registry: Registry
    lifetimes: Lifetimes


@dataclass
class _Asked:
    """Answers of one service, and who gave none."""

    books: list[fleet_pb2.GetBooksResponse] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)


class Auditor:
    """``run`` is for ``host.tasks.start``; one audit at a time. ``wall`` is Unix time in seconds."""

    def __init__(
        self,
        sources: Sources,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sources, self._wall, self._clock, self._sleep = sources, wall, clock, sleep
        self._tallies = Tallies()
        self._read_to_ms: int | None = None
        self._read_of: set[Process] = set()
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """For ever, EVERY_S apart."""
        while True:
            await self._sleep(EVERY_S)
            try:
                broken = [one for one in await self.audit() if not one.balanced]
            except HeadraceError as error:
                _audits.labels("failed").inc()
                log.warning("audit_failed", extra={"detail": error.message})
                continue
            for one in broken:
                extra = {"component": one.component, "equation": one.equation, "left": one.left, "right": one.right}
                log.error("books_do_not_balance", extra=extra)

    async def audit(self) -> list[Equation]:
        """Every equation. What does not balance is looked at again: a settlement may be on its way."""
        async with self._lock:
            started = self._clock()
            for left in reversed(range(_TRIES)):
                found = await self._once()
                num_broken = sum(not one.balanced for one in found)
                limit_s = _LONGEST_WITHOUT_ALL_S if any(one.is_missing for one in found) else _LONGEST_S
                if not num_broken or not left or self._clock() > started + limit_s:
                    break
                await self._sleep(_BETWEEN_S)
        _unbalanced.set(num_broken)
        _audits.labels(_result(found)).inc()
        return found

    async def _once(self) -> list[Equation]:
        workers = await self._workers()
        await self._read_journal({_process(one) for one in _tokens(workers)} | self._live(), bool(workers.silent))
        after = await self._workers()
        readings: list[Reading] = []
        own: list[Equation] = []
        for _ in range(_READINGS):
            asked = [await self._ask(name) for name in _SERVICES]
            own = list(chain.from_iterable(map(_own, (after, *asked))))
            if any(one.silent for one in asked):
                readings.clear()  # sums over some of the services would blame those that answer
                break
            readings.append(_reading(*asked))
            if len(readings) > 1 and _is_still(readings[-1]):
                break
            await self._sleep(_APART_S)
        return audit(Fleet(own, readings, self._compare(workers, after)))

    def _compare(self, before: _Asked, after: _Asked) -> dict[Process, Tokens]:
        upper = {_process(one): one.num_generated_tokens + one.num_kept_tokens for one in _tokens(after)}
        return {
            _process(one): Tokens(one.num_generated_tokens, self._tallies.of(_process(one)), upper[_process(one)])
            for one in _tokens(before)
            if _process(one) in upper
        }

    async def _read_journal(self, live: set[Process], keep_all: bool) -> None:
        """From where the last reading ended, or with the oldest process that was not there then: it may be back."""
        now_ms = int(self._wall() * 1000)
        begins = (self._read_to_ms, self._born_ms(live - self._read_of, now_ms))
        start = min((begin for begin in begins if begin is not None), default=0)
        query = policy_pb2.UsageQuery(from_ms=max(0, start - _OVERLAP_MS), to_ms=0)
        rows = [row async for row in self._sources.questions.usage(query)]
        self._tallies.add(rows, live, forget=not keep_all)
        self._read_to_ms, self._read_of = now_ms, live

    def _born_ms(self, processes: set[Process], now_ms: int) -> int | None:
        """When the oldest of them was seen first; None if none was."""
        segments = self._sources.lifetimes.between(0, now_ms) if processes else ()
        return min((one.from_ms for one in segments if (one.replica_id, one.epoch) in processes), default=None)

    def _live(self) -> set[Process]:
        return {(record.id, record.epoch) for record in self._sources.registry.records()}

    async def _workers(self) -> _Asked:
        ready = ("ready", "degraded", "draining")
        return await self._ask_all(
            [record.endpoint for record in self._sources.registry.records() if record.state in ready], "worker"
        )

    async def _ask(self, service: str) -> _Asked:
        asked = await self._ask_all(await self._sources.roll_call.endpoints(service), service)
        if not asked.books and not asked.silent:
            asked.silent.append(f"{service} (none has subscribed)")
        return asked

    async def _ask_all(self, endpoints: Sequence[str], service: str) -> _Asked:
        asked = _Asked()
        for endpoint, answer in zip(
            endpoints,
            await asyncio.gather(*(self._books(endpoint, service) for endpoint in endpoints)),
            strict=True,
        ):
            if answer is None:
                asked.silent.append(f"{service} {endpoint}")
            else:
                asked.books.append(answer)
        return asked

    async def _books(self, endpoint: str, service: str) -> fleet_pb2.GetBooksResponse | None:
        stub = fleet_pb2_grpc.BookkeepingStub(self._sources.peers.channel(endpoint, service))
        try:
            return await stub.GetBooks(fleet_pb2.GetBooksRequest(), timeout=_ASK_S)  # type: ignore[no-any-return]
        except grpc.aio.AioRpcError as error:
            log.warning("books_not_told", extra={"service": service, "endpoint": endpoint, "detail": error.details()})
            return None


def _own(asked: _Asked) -> list[Equation]:
    """A process that does not answer is an equation that does not balance."""
    told = [
        Equation(book.component, row.equation, row.left, row.right, row.balanced)
        for book in asked.books
        for row in book.rows
    ]
    return told + [missing(name) for name in asked.silent]


def _result(found: Sequence[Equation]) -> str:
    broken = [one for one in found if not one.balanced]
    return "unbalanced" if any(not one.is_missing for one in broken) else "incomplete" if broken else "balanced"


def _tokens(asked: _Asked) -> Iterable[fleet_pb2.EpochTokens]:
    return chain.from_iterable(book.tokens for book in asked.books)


def _process(one: fleet_pb2.EpochTokens) -> Process:
    return one.replica.id, one.replica.epoch


def _reading(gateways: _Asked, policies: _Asked, routers: _Asked) -> Reading:
    """Policies share one store: each tells the whole."""
    return Reading(
        held_by_gateways=sum(book.num_reservations for book in gateways.books),
        given_by_policy=max((book.num_reservations for book in policies.books), default=0),
        attempts_of_gateways=sum(book.num_attempts for book in gateways.books),
        attempts_of_routers=sum(book.num_attempts for book in routers.books),
    )


def _is_still(one: Reading) -> bool:
    return one.held_by_gateways == one.given_by_policy and one.attempts_of_gateways == one.attempts_of_routers
