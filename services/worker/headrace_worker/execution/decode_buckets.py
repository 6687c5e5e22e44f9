"""Which batch sizes of decodes are captured: few enough to hold, close enough that padding costs little. Pure."""

from __future__ import annotations

from bisect import bisect_left

_FINE = (1, 2, 4, 8)
_STEPS = ((64, 8), (256, 16), (1024, 64))
"""Up to so many sequences, buckets are so far apart; behind the last as far as there."""


def bucket_sizes(most_sequences: int) -> tuple[int, ...]:
    """Rising; the last is `most_sequences` itself."""
    sizes = list(_FINE)
    while sizes[-1] < most_sequences:
        gap = next((gap for end, gap in _STEPS if sizes[-1] < end), _STEPS[-1][1])
        sizes.append(sizes[-1] + gap)
    return (*(size for size in sizes if size < most_sequences), most_sequences)


def bucket_of(num_sequences: int, sizes: tuple[int, ...]) -> int | None:
    """The smallest bucket that holds them; None if none does."""
    place = bisect_left(sizes, num_sequences)
    return sizes[place] if num_sequences and place < len(sizes) else None
