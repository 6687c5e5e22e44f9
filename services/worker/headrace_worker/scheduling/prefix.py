"""The identities of a token sequence's full pages, and which of them the pool already holds.

The chain's hash function is injected: gateway, router and worker share it, and this module does not know it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias

from headrace_worker.scheduling.blocks import PageIdentity, PagePool
from headrace_worker.scheduling.limits import BLOCK_TOKENS
from headrace_worker.scheduling.page_events import PageKey

# (chain value of the block before, the block's 16 token ids) -> chain value.
HashBlock: TypeAlias = Callable[[bytes, Sequence[int]], bytes]


class PrefixChain:
    """Identities of the leading full pages of one growing sequence, computed once each and only when asked for."""

    def __init__(self, hash_block: HashBlock, page_tokens: int, root: bytes, kv_context: bytes) -> None:
        self.identities: list[PageIdentity] = []
        self._hash_block = hash_block
        self._page_tokens = page_tokens
        self._kv_context = kv_context
        self._last = root

    def append(self, page_ids: array[int]) -> PageIdentity:
        """The identity of the next page; `page_ids` are its tokens, exactly a page of them."""
        assert len(page_ids) == self._page_tokens, f"{len(page_ids)} ids are not a page"
        chain = self._last
        for start in range(0, self._page_tokens, BLOCK_TOKENS):
            chain = self._hash_block(chain, page_ids[start : start + BLOCK_TOKENS])
        identity = PageIdentity(PageKey(self._kv_context, chain), self._last, page_ids.tobytes())
        self.identities.append(identity)
        self._last = chain
        return identity

    def extend_over(self, ids: array[int]) -> None:
        """Append every full page of `ids` that is not there yet; `ids` starts at position 0."""
        size = self._page_tokens
        for index in range(len(self.identities), len(ids) // size):
            self.append(ids[index * size : (index + 1) * size])

    def fork(self) -> PrefixChain:
        """A chain with the same past and a future of its own."""
        twin = PrefixChain(self._hash_block, self._page_tokens, self._last, self._kv_context)
        twin.identities = list(self.identities)
        return twin


def match_prefix(pool: PagePool, chain: PrefixChain) -> list[int]:
    """The longest run of leading pages that the pool has. Each match compares tokens and parent, so it is exact."""
    pages: list[int] = []
    for identity in chain.identities:
        page = pool.find(identity)
        if page is None:
            break
        pages.append(page)
    return pages
