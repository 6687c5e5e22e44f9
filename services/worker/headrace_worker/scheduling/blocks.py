"""The pages of KV memory: who holds each, which are cached, which is given away next.

A page is in exactly one state:

    free --allocate--> held --release--> free        (never published)
                       held --release--> cached --share--> held
                       cached --allocate (least recently used)--> held
                       held --release--> quarantined --end_transfer--> free or cached
                                         quarantined --share (if published)--> held

Knows page numbers and identities, not requests, chains or tensors. Page 0 is the null page and is never handed out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from headrace_worker.scheduling.page_events import PageChange, PageEventLog, PageKey


class PoolExhausted(Exception):
    """No page is free or evictable. Admission makes this impossible; a faulty allocator must not harm neighbours."""


class PageIdentity(NamedTuple):
    """Everything a hit is compared on: key, chain value of the page before (or the root), ids as packed uint32."""

    key: PageKey
    parent: bytes
    tokens: bytes


class PagePool:
    """`num_pages` pages, numbered from 1. Every operation is O(1), `clear` apart."""

    def __init__(self, num_pages: int, events: PageEventLog) -> None:
        self.num_pages = num_pages
        self.events = events
        self.num_held = 0
        self.num_quarantined = 0
        self._holders = [0] * (num_pages + 1)
        self._identities: list[PageIdentity | None] = [None] * (num_pages + 1)
        self._free = list(range(num_pages, 0, -1))
        # Unreferenced cached pages, least recently released first.
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._index: dict[PageKey, int] = {}
        self._transfers: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Unreferenced pages with an identity: the evictable ones."""
        return len(self._evictable)

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self._evictable)

    def holders(self, page: int) -> int:
        return self._holders[page]

    def is_cached(self, page: int) -> bool:
        """Whether the page is unreferenced and kept for a later hit."""
        return page in self._evictable

    def allocate(self) -> int:
        """A page with one holder and no identity; evicts the least recently used cached one when none is free."""
        if self._free:
            page = self._free.pop()
        elif self._evictable:
            page, _ = self._evictable.popitem(last=False)
            self._forget(page)
        else:
            raise PoolExhausted
        self._holders[page] = 1
        self.num_held += 1
        return page

    def share(self, page: int) -> None:
        """One holder more, of a held or a published page."""
        if self._holders[page] == 0:
            if page in self._transfers:
                self.num_quarantined -= 1
            else:
                assert page in self._evictable, f"page {page} is neither held nor cached"
                del self._evictable[page]
            self.num_held += 1
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """One holder fewer. Release a table from its end, so that prefixes outlive what follows them."""
        assert self._holders[page] > 0, f"page {page} released more often than held"
        self._holders[page] -= 1
        if self._holders[page]:
            return
        self.num_held -= 1
        if page in self._transfers:
            self.num_quarantined += 1
        else:
            self._rest(page)

    def _rest(self, page: int) -> None:
        if self._identities[page] is None:
            self._free.append(page)
        else:
            self._evictable[page] = None

    def publish(self, page: int, identity: PageIdentity) -> bool:
        """Let later prompts hit a held, full page. False if another page already carries the key: keep that one."""
        assert self._holders[page] > 0, f"page {page} is published by no holder"
        assert self._identities[page] is None, f"page {page} is published twice"
        if identity.key in self._index:
            return False
        self._index[identity.key] = page
        self._identities[page] = identity
        self.events.add(PageChange.STORED, identity.key)
        return True

    def find(self, identity: PageIdentity) -> int | None:
        """The page with this identity, tokens and parent compared and not merely hashed."""
        page = self._index.get(identity.key)
        if page is None or self._identities[page] != identity:
            return None
        return page

    def _forget(self, page: int) -> None:
        identity = self._identities[page]
        if identity is None:
            return
        self._identities[page] = None
        del self._index[identity.key]
        self.events.add(PageChange.EVICTED, identity.key)

    def keys(self) -> list[PageKey]:
        """All published keys, for a reader that starts or that lost events."""
        return list(self._index)

    def begin_transfer(self, page: int) -> None:
        """Another machine reads or writes this held page until `end_transfer`; it may not be handed out before."""
        assert self._holders[page] > 0, f"page {page} enters a transfer without a holder"
        self._transfers[page] = self._transfers.get(page, 0) + 1

    def end_transfer(self, page: int) -> None:
        """The other side has acknowledged, or provably stopped. An unheld page leaves quarantine."""
        count = self._transfers[page] - 1
        if count:
            self._transfers[page] = count
            return
        del self._transfers[page]
        if self._holders[page] == 0:
            self.num_quarantined -= 1
            self._rest(page)

    def clear(self, epoch: int) -> None:
        """Forget all identities: nothing held changes hands, cached pages become free. Starts an epoch of events."""
        for page in self._index.values():
            self._identities[page] = None
        self._index.clear()
        self._free.extend(reversed(self._evictable))
        self._evictable.clear()
        self.events.start_epoch(epoch)

    def count_states(self) -> tuple[int, int, int, int]:
        """(free, cached, held, quarantined), counted page by page rather than read from the counters. O(pages)."""
        held = sum(1 for count in self._holders if count)
        quarantined = sum(1 for page in self._transfers if not self._holders[page])
        return len(set(self._free)), len(self._evictable), held, quarantined
