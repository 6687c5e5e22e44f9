"""The books of promised pages: what running requests may still take, and that it is always there.

    invariant: sum of owed pages over running requests <= free + evictable pages

Knows amounts only; which pages, and for which tokens, is the business of others.
"""

from __future__ import annotations

from headrace_worker.scheduling.blocks import PagePool, PoolExhausted


class Ledger:
    """Sums over all running requests with a hard promise, and over those that have ended, of one pool."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.num_promised = 0
        self.num_owed = 0
        # Of ended requests: their quotient is the reservation utilization.
        self.num_promised_ended = 0
        self.num_used_ended = 0

    @property
    def headroom(self) -> int:
        """Pages that nobody holds and nobody was promised."""
        return self.pool.num_available - self.num_owed

    def fits(self, promise: int, num_hits: int, num_unreferenced_hits: int) -> bool:
        """Whether a request may enter: its promise less its hits, when pinning those has shrunk the evictable."""
        return promise - num_hits <= self.headroom - num_unreferenced_hits

    def holds(self) -> bool:
        """The invariant."""
        return 0 <= self.num_owed <= self.pool.num_available


class Reservation:
    """What one request was promised, and how much of it is still owed. Hits were pinned before it opens.

    A soft one (`is_hard` false) bounds what its request may take, and the ledger owes it nothing.
    """

    def __init__(self, ledger: Ledger, promise: int, num_hits: int, is_hard: bool = True) -> None:
        self.promise = promise
        self.owed = promise - num_hits
        self.used = num_hits
        self.is_hard = is_hard
        self._ledger = ledger
        if is_hard:
            ledger.num_promised += promise
            ledger.num_owed += self.owed

    def take_page(self) -> int:
        """A page of the pool out of the promise. Raises PoolExhausted, owing as before, if the pool refuses."""
        assert self.owed > 0, f"a request asks for more than its {self.promise} promised pages"
        if not self.is_hard and self._ledger.headroom < 1:
            raise PoolExhausted
        page = self._ledger.pool.allocate()
        self.owed -= 1
        self.used += 1
        if self.is_hard:
            self._ledger.num_owed -= 1
        return page

    def suspend(self) -> None:
        """A soft promise rests: its request holds nothing and may take nothing."""
        assert not self.is_hard, "a hard promise is kept"
        self.owed = self.used = 0

    def resume(self, owed: int, num_hits: int) -> None:
        """The request may take `owed` pages again, and holds its hits."""
        self.owed, self.used = owed, num_hits

    def forgive(self, num_pages: int) -> None:
        """A part of the future will not come: a choice ended early."""
        assert 0 <= num_pages <= self.owed, f"cannot forgive {num_pages} of {self.owed} owed pages"
        self.owed -= num_pages
        if self.is_hard:
            self._ledger.num_owed -= num_pages

    def close(self) -> None:
        assert self.owed == 0, f"{self.owed} pages are owed to a request that has ended"
        if self.is_hard:
            self._ledger.num_promised -= self.promise
            self._ledger.num_promised_ended += self.promise
            self._ledger.num_used_ended += self.used
