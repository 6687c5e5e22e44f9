"""Which replica holds the head of a prompt: what the prefix index in Redis would say, with replicas' own page events.

Knows page keys and replica names; a hint only, as in production: the scheduler of the replica is the truth.
"""

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from headrace_worker.scheduling.page_events import PageChange, PageEventBatch
from headrace_worker.scheduling.prefix import PrefixChain


def hash_block(parent: bytes, ids: Sequence[int]) -> bytes:
    """A chain value; another function than production's, with the same property: equal past, equal value."""
    return blake2b(parent + array("I", ids).tobytes(), digest_size=16).digest()


class PrefixMap:
    """Holders by chain value."""

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._holders: dict[bytes, set[str]] = {}
        self._keys: dict[str, set[bytes]] = {}

    def hits(self, prompt_ids: "array[int]", replicas: Iterable[str]) -> dict[str, int]:
        """Leading tokens of the prompt that each replica is said to hold."""
        chain = PrefixChain(hash_block, self._page_tokens, b"", b"")
        found: dict[str, int] = {}
        alive = set(replicas)
        size = self._page_tokens
        for page in range(len(prompt_ids) // size):
            identity = chain.append(prompt_ids[page * size : (page + 1) * size])
            alive &= self._holders.get(identity.key.chain, set())
            if not alive:
                break
            found.update(dict.fromkeys(alive, (page + 1) * size))
        return found

    def take(self, replica_id: str, batch: PageEventBatch) -> None:
        """Changes of one replica's cache."""
        keys = self._keys.setdefault(replica_id, set())
        for event in batch.events:
            if event.change is PageChange.CLEARED:
                self.drop(replica_id)
                keys = self._keys.setdefault(replica_id, set())
            elif event.key is not None and event.change is PageChange.STORED:
                keys.add(event.key.chain)
                self._holders.setdefault(event.key.chain, set()).add(replica_id)
            elif event.key is not None:
                keys.discard(event.key.chain)
                self._forget(event.key.chain, replica_id)

    def drop(self, replica_id: str) -> None:
        for key in self._keys.pop(replica_id, ()):
            self._forget(key, replica_id)

    def _forget(self, key: bytes, replica_id: str) -> None:
        holders = self._holders.get(key)
        if holders is not None:
            holders.discard(replica_id)
            if not holders:
                del self._holders[key]
