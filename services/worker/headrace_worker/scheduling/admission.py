"""Whether a waiting request's whole future fits, and the one step in which it then gets it.

With B tokens per page and F = floor(prompt / B): promise = F + n * (ceil((prompt + max_output) / B) - F). The prefix
hits h are pinned, and the request enters iff promise - h <= free + evictable - sum over running (promised - allocated).
Knows neither order nor time: who is asked first is the waiting room's business.
"""

from __future__ import annotations

from headrace_worker.scheduling.group import Group, promised_pages
from headrace_worker.scheduling.ledger import Ledger, Reservation
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.prefix import HashBlock, PrefixChain, match_prefix
from headrace_worker.scheduling.statistical import StatisticalClass
from headrace_worker.scheduling.waiting import Waiting


class Admission:
    """Turns waiting requests into groups with a reservation, or says not now."""

    def __init__(self, limits: Limits, ledger: Ledger, hash_block: HashBlock, statistical: StatisticalClass) -> None:
        self.statistical = statistical
        self._limits = limits
        self._ledger = ledger
        self._hash_block = hash_block

    def try_admit(self, entry: Waiting) -> Group | None:
        """A group that holds its hits and is promised the rest; None, and nothing is held, if that does not fit."""
        request, size = entry.request, self._limits.page_tokens
        promise = promised_pages(request.num_prompt, request.max_output, request.n, size)
        is_hard = not self.statistical.admits(request)
        # However much were cached, this much would be missing: spare the look-up.
        if is_hard and promise - request.num_prompt // size > self._ledger.headroom:
            return None
        hits, num_unreferenced = self._hits(entry)
        if is_hard:
            fits = self._ledger.fits(promise, len(hits), num_unreferenced)
        else:
            fits = self.statistical.fits_new(request, len(hits), num_unreferenced)
        if not fits:
            return None
        for page in hits:
            self._ledger.pool.share(page)
        reservation = Reservation(self._ledger, promise, len(hits), is_hard)
        return Group(request, self._chain(entry), hits, reservation, self._limits)

    def make_room(self, entry: Waiting, num_choices: int) -> bool:
        """Preempt one statistical request if a default one lacks pages, or `num_choices`, that this class holds.

        False if nothing is missing, or preempting all would not do.
        """
        request = entry.request
        promise = promised_pages(request.num_prompt, request.max_output, request.n, self._limits.page_tokens)
        hits, num_unreferenced = self._hits(entry)
        num_pages = promise - len(hits) + num_unreferenced - self._ledger.headroom
        if num_pages <= 0 and num_choices <= 0:
            return False
        return self.statistical.make_room(num_pages, num_choices, hits)

    def _hits(self, entry: Waiting) -> tuple[list[int], int]:
        """Pages of the prompt that the pool has, and how many of them nobody holds."""
        pool = self._ledger.pool
        hits = match_prefix(pool, self._chain(entry))
        return hits, sum(1 for page in hits if pool.is_cached(page))

    def _chain(self, entry: Waiting) -> PrefixChain:
        """The prompt's identities, computed at the first attempt and kept for the next."""
        if entry.chain is None:
            request = entry.request
            entry.chain = PrefixChain(
                self._hash_block, self._limits.page_tokens, request.chain_root, request.kv_context
            )
            if self._limits.caches_prefixes:
                entry.chain.extend_over(request.packed_prompt())
        return entry.chain
