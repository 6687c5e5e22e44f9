"""What happened to cached pages, for whoever mirrors the cache. Does not know who listens, or whether anyone does."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

MAX_UNDRAINED = 65_536


class PageKey(NamedTuple):
    """The identity of a full page: the context that shaped its KV, and the chain value of its last block."""

    kv_context: bytes
    chain: bytes


class PageChange(enum.Enum):
    STORED = "stored"
    EVICTED = "evicted"
    CLEARED = "cleared"


class PageEvent(NamedTuple):
    """One change; `key` is None for CLEARED, which is about all pages. `seq` has no gaps within an epoch."""

    seq: int
    change: PageChange
    key: PageKey | None = None


@dataclass(frozen=True, slots=True)
class PageEventBatch:
    """Events of one epoch in order. `lost`: some were dropped before, so the reader must list all pages anew."""

    epoch: int
    events: tuple[PageEvent, ...]
    lost: bool


class PageEventLog:
    """Numbers the events of an epoch and keeps them, boundedly, until they are drained."""

    def __init__(self, epoch: int, max_undrained: int = MAX_UNDRAINED) -> None:
        self.epoch = epoch
        self.next_seq = 0
        self._events: deque[PageEvent] = deque(maxlen=max_undrained)
        self._lost = False

    def add(self, change: PageChange, key: PageKey | None = None) -> None:
        self._lost = self._lost or len(self._events) == self._events.maxlen
        self._events.append(PageEvent(self.next_seq, change, key))
        self.next_seq += 1

    def start_epoch(self, epoch: int) -> None:
        """Forget what was before: its first event says that everything is gone."""
        assert epoch > self.epoch, f"epoch {epoch} does not follow {self.epoch}"
        self.epoch = epoch
        self.next_seq = 0
        self._events.clear()
        self._lost = False
        self.add(PageChange.CLEARED)

    def drain(self) -> PageEventBatch:
        batch = PageEventBatch(self.epoch, tuple(self._events), self._lost)
        self._events.clear()
        self._lost = False
        return batch
