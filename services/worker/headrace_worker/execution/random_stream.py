"""Random numbers that depend on nothing but their key: the same seed gives the same tokens in any batch. Pure."""

from __future__ import annotations

from hashlib import blake2b

_KEY_BYTES = 8
_MANTISSA_BITS = 53


def _word(seed: int, output_index: int, choice: int) -> bytes:
    """BLAKE2b of the three numbers."""
    parts = (seed & 0xFFFF_FFFF_FFFF_FFFF, output_index, choice)
    message = b"".join(part.to_bytes(_KEY_BYTES, "little") for part in parts)
    return blake2b(message, digest_size=8, person=b"headrace.draw.1").digest()


def uniform(seed: int, output_index: int, choice: int) -> float:
    """A number in [0, 1), uniform over keys: the top 53 bits of their word."""
    word = int.from_bytes(_word(seed, output_index, choice), "little")
    return (word >> (64 - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS


def draw_key(seed: int, output_index: int, choice: int) -> int:
    """The same word as a signed 64-bit number: the key of a stream with a number for each token."""
    return int.from_bytes(_word(seed, output_index, choice), "little", signed=True)
