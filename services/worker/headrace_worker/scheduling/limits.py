"""The fixed sizes that every decision is made within. Knows no flags or environment: the config resolves them."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_TOKENS = 16


class LimitsError(ValueError):
    """A size that cannot be served with. `field` names it."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes of one replica; raises LimitsError naming the first field that is wrong.

    `num_pages` leaves out the null page. `max_running` counts choices. `max_step_tokens` is the token budget of a
    step, of which `max_chunk_tokens` at most are prompt tokens. `depth` plans are in flight at once, each with its
    share of the decodes (a pipeline of so many stages is full then). `overlap` allows planning a decode whose input
    token is still on the device; an engine that may draw nothing in a step must not overlap. A head of queue without a
    deadline may be passed for `patience_s`. `overrun` is the chance that statistical requests together need more pages
    than they entered on; 0 promises theirs in full, like everybody's. Without `caches_prefixes` no page is hashed or
    kept for a later prompt. A sequence longer than the whole pool is no error: such requests are refused one by one.
    """

    num_pages: int
    vocab_size: int
    page_tokens: int = BLOCK_TOKENS
    max_sequence_tokens: int = 8192
    max_running: int = 256
    max_waiting: int = 1024
    max_step_tokens: int = 2048
    max_chunk_tokens: int = 1024
    end_token_ids: frozenset[int] = frozenset()
    overlap: bool = False
    patience_s: float = 5.0
    depth: int = 1
    overrun: float = 0.0
    caches_prefixes: bool = True

    def __post_init__(self) -> None:
        positive = (
            "num_pages",
            "vocab_size",
            "page_tokens",
            "max_sequence_tokens",
            "max_running",
            "max_waiting",
            "max_step_tokens",
            "max_chunk_tokens",
            "patience_s",
            "depth",
        )
        for name in positive:
            value = getattr(self, name)
            if not value > 0:
                raise LimitsError(name, f"must be positive, is {value}")
        if not 0 <= self.overrun <= 0.5:
            raise LimitsError("overrun", f"must be from 0 to 0.5, is {self.overrun}")
        if self.page_tokens % BLOCK_TOKENS:
            raise LimitsError("page_tokens", f"must be a multiple of {BLOCK_TOKENS}, is {self.page_tokens}")
        # Every decode runs in every step, and a page of prompt beside them: the batch must have room for both.
        needed = self.max_running + self.page_tokens
        if self.max_step_tokens < needed:
            raise LimitsError(
                "max_step_tokens", f"must hold max_running and one page ({needed}), is {self.max_step_tokens}"
            )
        if self.max_chunk_tokens < self.page_tokens:
            raise LimitsError(
                "max_chunk_tokens", f"must hold a page of {self.page_tokens} tokens, is {self.max_chunk_tokens}"
            )
        for token_id in self.end_token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise LimitsError("end_token_ids", f"{token_id} is outside the vocabulary of {self.vocab_size}")

    @property
    def max_in_flight(self) -> int:
        """Plans that may be made before the result of the first of them has come."""
        return self.depth + self.overlap

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` positions."""
        return -(-num_tokens // self.page_tokens)
