"""The connection to Redis: one script, one deadline, one breaker. Knows nothing of what the script does."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import NoScriptError, RedisClusterException, RedisError, ResponseError

from headrace_kit import telemetry
from headrace_policy import redis_schema

log = logging.getLogger(__name__)
DECIDE_S = 0.08
"""Silence after which an admission is decided without Redis: below 100 ms, whatever it does."""
PATIENT_S = 1.0
"""For calls that nobody waits for: what they do must not be lost."""
_SLICE_S = 0.005
_MOST_SILENT = 3
# AttributeError: when slots move, redis-py's cluster client closes connections that its own callers are using.
_FAULTS = (TimeoutError, RedisError, RedisClusterException, OSError, AttributeError)
PAUSE_S = 0.5
"""How long nothing is tried after a failure."""
_AT_ONCE = 8
"""Redis works on one call at a time, and so does this process: a burst must not open a connection for each call."""
_calls = telemetry.counter("redis_calls_total", "Calls to the quota store by result", ["result"])
_seconds = telemetry.histogram("redis_call_seconds", "Time of calls to the quota store that were answered")


class StoreAwayError(Exception):
    """Redis did not answer in time, or answered with an error. If ``sent``, the call may have taken effect."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class SchemaError(RedisError):
    """The data there is not for us."""


class Client(Protocol):
    """What is used of redis-py's clients, alone or of a cluster."""

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any: ...
    async def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any: ...
    async def ping(self) -> Any: ...
    async def xrange(self, name: str, *, count: int) -> Any: ...
    async def xdel(self, name: str, *ids: Any) -> Any: ...
    async def zcard(self, name: str) -> Any: ...
    async def aclose(self) -> None: ...


def connect(url: str) -> Client:
    """A client for unix://, redis://, rediss:// or redis+cluster:// URLs; connects with the first call."""
    limits: dict[str, Any] = {"socket_connect_timeout": PATIENT_S, "socket_timeout": 2 * PATIENT_S}
    if url.startswith("redis+cluster://"):
        cluster: Any = RedisCluster.from_url(url.replace("redis+cluster", "redis", 1), **limits)
        return cluster  # type: ignore[no-any-return]
    client: Any = Redis.from_url(url, retry=None, **limits)
    return client  # type: ignore[no-any-return]


async def _within(work: Callable[[], Awaitable[Any]], limits_s: tuple[float, float], heard: Callable[[], int]) -> Any:
    """The result, or TimeoutError after a silence of ``limits_s[0]``, and after ``limits_s[1]`` in any case.

    Silence is time in which this process listened and Redis answered nobody: ``heard`` counts its answers. A burst of
    calls keeps the loop from its sockets, and then it finds timer and answer ready together. So the wait is cut into
    slices that count as themselves however late the loop comes back; and a slow Redis that works through a burst is
    none that is away.
    """
    most_silent, most = (max(1, round(limit_s / _SLICE_S)) for limit_s in limits_s)
    task = asyncio.ensure_future(work())
    try:
        num_silent, num_heard = 0, heard()
        for _ in range(most):
            done, _pending = await asyncio.wait([task], timeout=_SLICE_S)
            if done:
                return task.result()
            num_silent, num_heard = (num_silent + 1 if heard() == num_heard else 0), heard()
            if num_silent >= most_silent:
                break
        raise TimeoutError
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_let_go)


def _let_go(task: "asyncio.Task[Any]") -> None:
    """Nobody waits for its outcome any more; the client at times takes a cancellation for an answer and goes on."""
    if not task.cancelled():
        task.exception()


class RedisLink:
    """Runs the ledger's script. ``away`` says why Redis cannot be used, empty when it can."""

    def __init__(
        self,
        client: Client,
        *,
        decide_s: float = DECIDE_S,
        patient_s: float = PATIENT_S,
        script: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client, self.decide_s, self.patient_s, self._clock = client, decide_s, patient_s, clock
        self._script = script or resources.files(__package__).joinpath("ledger.lua").read_text("utf-8")
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._sha = hashlib.sha1(self._script.encode()).hexdigest()
        self._blocked_until = 0.0
        self._num_answered, self._num_silent, self._silent_until = 0, 0, float("-inf")
        self._probing, self._verified = False, False
        self.away = ""
        self.back_since = clock()

    async def run(self, keys: Sequence[str], args: Sequence[str | bytes], limit_s: float | None = None) -> Any:
        """One round trip; raises StoreAwayError within ``limit_s`` (patient_s), at once while the breaker is open."""
        return await self.call(lambda: self._evaluate(keys, args), limit_s)

    async def call(self, work: Callable[[], Awaitable[Any]], limit_s: float | None = None) -> Any:
        """``work()`` under the breaker and a deadline."""
        if self.away and (self._probing or self._clock() < self._blocked_until):
            _calls.labels("blocked").inc()
            raise StoreAwayError(self.away, sent=False)
        async with self._turns:
            return await self._call_in_turn(work, self.patient_s if limit_s is None else limit_s)

    async def _call_in_turn(self, work: Callable[[], Awaitable[Any]], limit_s: float) -> Any:
        """The deadline runs from here: it is for a silent Redis, not for a burst that waits for itself."""
        if self.away and (self._probing or self._clock() < self._blocked_until):
            _calls.labels("blocked").inc()
            raise StoreAwayError(self.away, sent=False)
        self._probing, started = bool(self.away), self._clock()
        try:
            limits_s = (limit_s, max(limit_s, self.patient_s))
            result = await _within(lambda: self._on_known_ground(work), limits_s, lambda: self._num_answered)
        except _FAULTS as error:
            raise StoreAwayError(self._lost(error, started, limit_s), sent=True) from error
        finally:
            self._probing = False
        self._answered(self._clock() - started)
        return result

    async def warm_up(self) -> None:
        """Opens the connections that a burst needs, so that its calls wait for answers only; failures are no news."""
        pings = [asyncio.ensure_future(self.client.ping()) for _ in range(_AT_ONCE)]
        _, late = await asyncio.wait(pings, timeout=self.patient_s)
        for ping in late:
            ping.cancel()
        await asyncio.gather(*pings, return_exceptions=True)

    async def _on_known_ground(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """The first call to a server, and the first after it was away, looks at the number of its data."""
        if not self._verified:
            await self.verify()
        return await work()

    async def verify(self) -> None:
        """Raises SchemaError; an empty server gets our number."""
        arguments = (redis_schema.KEY, redis_schema.SCHEMA, redis_schema.LIFE_MS)
        found = await self.client.eval(redis_schema.SCRIPT, 1, *arguments)
        wrong = redis_schema.complaint(found)
        self._verified = not wrong
        if wrong:
            raise SchemaError(wrong)

    async def _evaluate(self, keys: Sequence[str], args: Sequence[str | bytes]) -> Any:
        try:
            return await self.client.evalsha(self._sha, len(keys), *keys, *args)
        except NoScriptError:  # a new or emptied server: EVAL also loads it
            await self.verify()
            return await self.client.eval(self._script, len(keys), *keys, *args)

    def _lost(self, error: BaseException, started: float, limit_s: float) -> str:
        """Opens the breaker, unless it was a hiccup, or a call that Redis refuses: calls share the same hiccup."""
        _calls.labels("failed").inc()
        reason = str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            reason = f"no answer within {limit_s * 1000:.0f} ms"
            if started >= self._silent_until:  # else it waited through the same silence as the call before
                self._num_silent += 1
            self._silent_until = self._clock()
            if not self.away and self._num_silent < _MOST_SILENT and limit_s < self.patient_s:
                return reason
        if isinstance(error, ResponseError | AttributeError):
            return reason
        if not self.away:
            log.error("redis_away", extra={"detail": reason})
        self.away, self._blocked_until, self._verified = reason, self._clock() + PAUSE_S, False
        return reason

    def _answered(self, seconds: float) -> None:
        _calls.labels("answered").inc()
        _seconds.observe(seconds)
        self._num_answered, self._num_silent = self._num_answered + 1, 0
        if self.away:
            log.info("redis_answers")
            self.away, self.back_since = "", self._clock()
