"""How this router speaks to Redis: a client, and Lua scripts that load themselves. Knows no key."""

import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import NoScriptError

Call = tuple[Sequence[bytes], Sequence[bytes | str | int]]
"""Keys and arguments of one call of a script."""
_PATIENCE_S = 2.0
_CONNECTIONS = 8


def connect(url: str) -> Any:
    """A client for unix://, redis:// or rediss:// URLs; connects with the first call."""
    limits: dict[str, Any] = {"socket_connect_timeout": _PATIENCE_S, "socket_timeout": _PATIENCE_S, "retry": None}
    pool = BlockingConnectionPool.from_url(url, max_connections=_CONNECTIONS, timeout=_PATIENCE_S, **limits)
    return Redis.from_pool(pool)


class Script:
    """A Lua script of this package; a server that is new or was emptied gets it again."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._text = resources.files(__package__).joinpath(name).read_text("utf-8")
        self._sha = hashlib.sha1(self._text.encode()).hexdigest()

    async def run(self, keys: Sequence[bytes], args: Sequence[bytes | str | int]) -> Any:
        try:
            return await self._client.evalsha(self._sha, len(keys), *keys, *args)
        except NoScriptError:
            return await self._client.eval(self._text, len(keys), *keys, *args)

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """All of them in one pipeline."""
        try:
            return await self._pipeline(calls)
        except NoScriptError:
            await self._client.script_load(self._text)
            return await self._pipeline(calls)

    async def _pipeline(self, calls: Sequence[Call]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipe:
            for keys, args in calls:
                pipe.evalsha(self._sha, len(keys), *keys, *args)
            return list(await pipe.execute())
