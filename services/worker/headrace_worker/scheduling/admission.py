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
from headrace_worker.scheduling.waiting import Waiting


class Admission:
    """Turns waiting requests into groups with a reservation, or says not now."""

    def __init__(self, limits: Limits, ledger: Ledger, hash_block: HashBlock) -> None:
        self._limits = limits
        self._ledger = ledger
        self._hash_block = hash_block

    def try_admit(self, entry: Waiting) -> Group | None:
        """A group that holds its hits and is promised the rest; None, and nothing is held, if that does not fit."""
        request, size = entry.request, self._limits.page_tokens
        promise = promised_pages(request.num_prompt, request.max_output, request.n, size)
        # However much were cached, this much would be missing: spare the look-up.
        if promise - request.num_prompt // size > self._ledger.headroom:
            return None
        chain = self._chain(entry)
        pool = self._ledger.pool
        hits = match_prefix(pool, chain)
        num_unreferenced = sum(1 for page in hits if pool.is_cached(page))
        if not self._ledger.fits(promise, len(hits), num_unreferenced):
            return None
        for page in hits:
            pool.share(page)
        return Group(request, chain, hits, Reservation(self._ledger, promise, len(hits)), self._limits)

    def _chain(self, entry: Waiting) -> PrefixChain:
        """The prompt's identities, computed at the first attempt and kept for the next."""
        if entry.chain is None:
            request = entry.request
            entry.chain = PrefixChain(
                self._hash_block, self._limits.page_tokens, request.chain_root, request.kv_context
            )
            entry.chain.extend_over(request.packed_prompt())
        return entry.chain
