"""What the prefix index says and how a replica's cache is mirrored into it (DESIGN section 6). Does no I/O.

The index maps (kv_context, chain value of a page's last block) to holders. A holder is a record of 8 bytes, 4 of the
replica's digest and 4 of its epoch's: what an epoch held is void with the epoch, whether or not anybody told the index.
It is a hint: the worker is the truth. Knows no Redis and no stream.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Protocol

from headrace.v1 import worker_pb2
from headrace.v1.prefix_chain import BLOCK_TOKENS, DIGEST_BYTES

RECORD_BYTES = 8
# Bounds what one replica may put into the index, whatever its pool holds.
MAX_KEYS_PER_REPLICA = 250_000


class Group(NamedTuple):
    """Replicas whose pages have the same keys."""

    kv_context: bytes
    page_tokens: int


class PrefixIndex(Protocol):
    """Who holds the head of a prompt; a port with two implementations, Redis and none."""

    async def hits(self, chain: bytes, groups: Iterable[Group]) -> Mapping[bytes, int]:
        """Prompt tokens that can be hit, by record. Never raises for lack of the index: it then knows nothing."""
        ...


class NoIndex:
    """For a router without Redis: every prompt is new everywhere."""

    async def hits(self, chain: bytes, groups: Iterable[Group]) -> Mapping[bytes, int]:
        return {}


def record_of(replica_id: str, epoch: str) -> bytes:
    """The record of one epoch of one replica; the first half is the same in every epoch."""
    whole = blake2b(replica_id.encode(), digest_size=4).digest()
    return whole + blake2b(epoch.encode(), digest_size=4, key=whole).digest()


def page_values(chain: bytes, page_tokens: int) -> bytes:
    """Of a prompt's chain (16 bytes a block): the value of each full page's last block, concatenated."""
    num_blocks = page_tokens // BLOCK_TOKENS
    if num_blocks <= 1:
        return chain
    width = num_blocks * DIGEST_BYTES
    return b"".join(chain[end - DIGEST_BYTES : end] for end in range(width, len(chain) + 1, width))


def leading_runs(found: Sequence[int | bytes]) -> dict[bytes, int]:
    """Leading pages that each record holds, from runs of equal holders: page, holders, page, holders, ..., end.

    Holders that lack a page hit nothing behind it, whatever they hold there.
    """
    runs: dict[bytes, int] = {}
    alive: set[bytes] = set()
    for place in range(0, len(found) - 1, 2):
        page, holders = found[place], found[place + 1]
        assert isinstance(page, int) and isinstance(holders, bytes), "a run is a page and its holders"
        here = {holders[at : at + RECORD_BYTES] for at in range(0, len(holders), RECORD_BYTES)}
        if page == 0:
            alive = here
        for record in alive - here:
            runs[record] = page
        alive &= here
        if not alive:
            return runs
    for record in alive:
        runs[record] = int(found[-1])
    return runs


class GapError(Exception):
    """Changes are missing: only a complete list helps."""


@dataclass(frozen=True)
class Change:
    """What has to be done to the index: disjoint keys, in no order."""

    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()


class Mirror:
    """What one replica's cache holds, from its numbered changes; duplicates change nothing, a gap raises."""

    def __init__(self, max_keys: int = MAX_KEYS_PER_REPLICA) -> None:
        self.epoch = ""
        self.next_seq = 0
        self.keys: set[bytes] = set()
        self._max_keys = max_keys
        self._listed: set[bytes] | None = None
        self._listed_epoch = ""

    @property
    def last_seen(self) -> tuple[str, int]:
        """Epoch and number to go on from; an empty epoch asks for the whole list."""
        return (self.epoch, self.next_seq - 1) if self.next_seq > 0 else ("", 0)

    def distrust(self) -> None:
        """Ask for the whole list next; what is known stays until it has come."""
        self.next_seq, self._listed = 0, None

    def take(self, epoch: str, blocks: worker_pb2.BlockEvents) -> Change:
        """Raises GapError if changes before these are missing."""
        if blocks.relist_begin:
            self._listed, self._listed_epoch = set(), epoch
        if self._listed is not None:
            return self._list(epoch, blocks, self._listed)
        if epoch != self.epoch or blocks.first_seq > self.next_seq:
            raise GapError
        new = blocks.events[self.next_seq - blocks.first_seq :]
        self.next_seq += len(new)
        touched: dict[bytes, bool] = {}
        for event in new:
            self._apply(event, touched)
        return Change(
            tuple(key for key, held in touched.items() if held),
            tuple(key for key, held in touched.items() if not held),
        )

    def _apply(self, event: worker_pb2.BlockEvent, touched: dict[bytes, bool]) -> None:
        kind = event.WhichOneof("change")
        if kind == "cleared":
            touched.update(dict.fromkeys(self.keys, False))
            self.keys.clear()
        elif kind == "evicted":
            gone = _split(event.evicted)
            self.keys.difference_update(gone)
            touched.update(dict.fromkeys(gone, False))
        else:
            stored = _split(event.stored)[: max(0, self._max_keys - len(self.keys))]
            self.keys.update(stored)
            touched.update(dict.fromkeys(stored, True))

    def _list(self, epoch: str, blocks: worker_pb2.BlockEvents, listed: set[bytes]) -> Change:
        if epoch != self._listed_epoch:
            self._listed = None
            raise GapError
        for event in blocks.events:
            listed.update(_split(event.stored)[: self._max_keys - len(listed)])
        if not blocks.relist_end:
            return Change()
        gone = self.keys - listed
        self.epoch, self.next_seq, self.keys, self._listed = epoch, blocks.first_seq, listed, None
        return Change(tuple(listed), tuple(gone))


def _split(packed: bytes) -> list[bytes]:
    return [packed[at : at + DIGEST_BYTES] for at in range(0, len(packed), DIGEST_BYTES)]
