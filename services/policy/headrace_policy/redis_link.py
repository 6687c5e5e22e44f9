"""The connection to Redis: one script, one deadline, one breaker. Knows nothing of what the script does."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, Protocol

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import NoScriptError, RedisClusterException, RedisError, ResponseError

from headrace_kit import telemetry

log = logging.getLogger(__name__)
CALL_S = 0.08
"""Below the 100 ms in which an admission is decided, whatever Redis does."""
PAUSE_S = 0.5
"""How long nothing is tried after a failure."""
_CONNECTIONS = 8
"""Redis works on one call at a time, and so does this process; a burst must not open a connection for each call."""
_calls = telemetry.counter("redis_calls_total", "Calls to the quota store by result", ["result"])
_seconds = telemetry.histogram("redis_call_seconds", "Time of calls to the quota store that were answered")


class StoreAwayError(Exception):
    """Redis did not answer in time, or answered with an error. If ``sent``, the call may have taken effect."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class Client(Protocol):
    """What is used of redis-py's clients, alone or of a cluster."""

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any: ...
    async def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any: ...
    async def ping(self) -> Any: ...
    async def xrange(self, name: str, *, count: int) -> Any: ...
    async def xdel(self, name: str, *ids: Any) -> Any: ...
    async def aclose(self) -> None: ...


def connect(url: str) -> Client:
    """A client for unix://, redis://, rediss:// or redis+cluster:// URLs; connects with the first call."""
    limits: dict[str, Any] = {"socket_connect_timeout": CALL_S, "socket_timeout": 2 * CALL_S, "retry": None}
    if url.startswith("redis+cluster://"):
        cluster: Any = RedisCluster.from_url(url.replace("redis+cluster", "redis", 1), max_connections=_CONNECTIONS)
        return cluster  # type: ignore[no-any-return]
    pool = BlockingConnectionPool.from_url(url, max_connections=_CONNECTIONS, timeout=10 * CALL_S, **limits)
    client: Any = Redis.from_pool(pool)
    return client  # type: ignore[no-any-return]


class RedisLink:
    """Runs the ledger's script. ``away`` says why Redis cannot be used, empty when it can."""

    def __init__(
        self, client: Client, *, script: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.client, self._clock = client, clock
        self._script = script or resources.files(__package__).joinpath("ledger.lua").read_text("utf-8")
        self._sha = hashlib.sha1(self._script.encode()).hexdigest()
        self._blocked_until = 0.0
        self._answered_at = float("-inf")
        self._probing = False
        self.away = ""
        self.back_since = clock()

    async def run(self, keys: Sequence[str], args: Sequence[str | bytes]) -> Any:
        """One round trip; raises StoreAwayError within CALL_S, at once while the breaker is open."""
        return await self.call(lambda: self._evaluate(keys, args))

    async def call(self, work: Callable[[], Any], limit_s: float = CALL_S) -> Any:
        """``work()`` under the breaker and a deadline."""
        if self.away and (self._probing or self._clock() < self._blocked_until):
            _calls.labels("blocked").inc()
            raise StoreAwayError(self.away, sent=False)
        self._probing, started = bool(self.away), self._clock()
        try:
            async with asyncio.timeout(limit_s):
                result = await work()
        except (TimeoutError, RedisError, RedisClusterException, OSError) as error:
            raise StoreAwayError(self._lost(error, started), sent=True) from error
        finally:
            self._probing = False
        self._answered(self._clock() - started)
        return result

    async def _evaluate(self, keys: Sequence[str], args: Sequence[str | bytes]) -> Any:
        try:
            return await self.client.evalsha(self._sha, len(keys), *keys, *args)
        except NoScriptError:  # a new or emptied server: EVAL also loads it
            return await self.client.eval(self._script, len(keys), *keys, *args)

    def _lost(self, error: BaseException, started: float) -> str:
        _calls.labels("failed").inc()
        # A burst that waits for itself, or a call that Redis refuses, is no reason to stop everyone.
        if isinstance(error, TimeoutError) and self._answered_at > started:
            return "this call was not answered in time, others were"
        if isinstance(error, ResponseError):
            return str(error)
        reason = str(error) or f"no answer within {CALL_S * 1000:.0f} ms"
        if not self.away:
            log.error("redis_away", extra={"detail": reason})
        self.away, self._blocked_until = reason, self._clock() + PAUSE_S
        return reason

    def _answered(self, seconds: float) -> None:
        _calls.labels("answered").inc()
        _seconds.observe(seconds)
        self._answered_at = self._clock()
        if self.away:
            log.info("redis_answers")
            self.away, self.back_since = "", self._clock()
