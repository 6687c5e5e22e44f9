"""One replica's pages in the prefix index, written under its lease (DESIGN section 6). Knows no stream.

Every key expires unless it is written again, so what nobody keeps leaves by itself. Commands of Redis 6.2.
"""

from typing import Any

from redis.exceptions import RedisError

from headrace_router.prefix_index import Change
from headrace_router.redis_index import key_prefix
from headrace_router.redis_link import Script

LEASE_S = 8.0
EXPIRY_S = 300.0
# Who else holds a page that so many hold need not be known: any of them is as good.
MAX_HOLDERS = 128
# One script blocks Redis, so a large change goes in parts.
KEYS_PER_CALL = 256


class IndexAwayError(Exception):
    """Redis did not take a write; how much of it is there is not known."""


class LeaseLostError(Exception):
    """Another router writes this replica's pages now."""


class RedisPages:
    """Writes for one router; ``expiry_s`` is how long a page stays that nobody writes again."""

    def __init__(self, client: Any, router_id: str, *, expiry_s: float = EXPIRY_S) -> None:
        self._client, self._script = client, Script(client, "index_write.lua")
        self._router_id, self.expiry_s = router_id.encode(), expiry_s

    async def acquire(self, kv_context: bytes, replica_id: str, lease_s: float = LEASE_S) -> bool:
        """Whether this router keeps the replica's pages from now on."""
        key = _lease(kv_context, replica_id)
        try:
            if await self._client.set(key, self._router_id, nx=True, px=round(lease_s * 1000)):
                return True
            return bool(await self._client.get(key) == self._router_id)
        except (RedisError, OSError, TimeoutError):
            return False

    async def write(
        self, kv_context: bytes, replica_id: str, record: bytes, change: Change, *, whole: bool = False
    ) -> bool:
        """Applies a change and renews the lease; ``whole``: with it the index has all of the replica's pages.

        False if the index does not have what was written before: it has to be written whole. Raises LeaseLostError
        and IndexAwayError.
        """
        keys = [
            key_prefix(kv_context),
            _lease(kv_context, replica_id),
            key_prefix(kv_context) + b"m:" + replica_id.encode(),
        ]
        limits = (round(LEASE_S * 1000), round(self.expiry_s * 1000), MAX_HOLDERS)
        parts = _parts(change)
        try:
            for number, (added, removed) in enumerate(parts, 1):
                mark = int(whole and number == len(parts))
                done = await self._script.run(keys, (self._router_id, record, *limits, added, removed, mark))
                if done < 0:
                    raise LeaseLostError
        except (RedisError, OSError, TimeoutError) as error:
            raise IndexAwayError(str(error)) from error
        return bool(done)

    async def release(self, kv_context: bytes, replica_id: str) -> None:
        """Lets another router take over at once."""
        try:
            key = _lease(kv_context, replica_id)
            if await self._client.get(key) == self._router_id:
                await self._client.delete(key)
        except (RedisError, OSError, TimeoutError):
            return


def _lease(kv_context: bytes, replica_id: str) -> bytes:
    return key_prefix(kv_context) + b"l:" + replica_id.encode()


def _parts(change: Change) -> list[tuple[bytes, bytes]]:
    """Removals before additions; at least one part, which then only renews."""
    size = KEYS_PER_CALL
    parts = [(b"", b"".join(change.removed[at : at + size])) for at in range(0, len(change.removed), size)]
    parts += [(b"".join(change.added[at : at + size]), b"") for at in range(0, len(change.added), size)]
    return parts or [(b"", b"")]
