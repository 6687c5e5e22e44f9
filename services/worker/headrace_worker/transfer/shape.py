"""What KV pages look like: what both sides of a hand-off must agree on, and the part of it that one rank has."""

from __future__ import annotations

from dataclasses import dataclass, fields

WORD_BYTES = 8
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1, "none": 8}


class HandOffError(Exception):
    """A hand-off that cannot be, or did not, go well; `reason` is one of the status map, the text is for a person."""

    reason = "prefill_lost"


class ShapeMismatch(HandOffError):
    """The two sides' KV differs in `field`."""

    def __init__(self, field: str, ours: object, theirs: object) -> None:
        super().__init__(f"{field} is {ours!r} here and {theirs!r} on the other side")
        self.field = field


class CorruptGroup(HandOffError):
    """Bytes arrived that are not those that were sent."""


class Expired(HandOffError):
    """The source pages may have been given to others since: what was read of them is void."""

    reason = "kv_expired"


@dataclass(frozen=True, slots=True)
class KvShape:
    """A model's KV over all ranks. `dtype` is a key of ITEM_BYTES."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    page_tokens: int

    @property
    def head_words(self) -> int:
        """64-bit words of one head of one token. Raises HandOffError if that is no whole number."""
        size = self.head_dim * ITEM_BYTES[self.dtype]
        if size % WORD_BYTES:
            raise HandOffError(f"a head of {size} bytes is no multiple of {WORD_BYTES}")
        return size // WORD_BYTES

    @property
    def page_bytes(self) -> int:
        """Keys and values of one page of one layer."""
        return 2 * self.page_tokens * self.num_kv_heads * self.head_words * WORD_BYTES

    def check(self, theirs: KvShape) -> None:
        """Raises ShapeMismatch naming the first field in which the other side differs."""
        for field in fields(self):
            mine, other = getattr(self, field.name), getattr(theirs, field.name)
            if mine != other:
                raise ShapeMismatch(field.name, mine, other)


@dataclass(frozen=True, slots=True)
class Shard:
    """The layers and KV heads that one rank has: `num_layers` from `first_layer`, `num_heads` from `first_head`."""

    first_layer: int
    num_layers: int
    first_head: int
    num_heads: int

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.first_layer + self.num_layers)

    @property
    def heads(self) -> slice:
        return slice(self.first_head, self.first_head + self.num_heads)
