"""The tokens or the text of a prompt, from its segments: the same segment is the same text in every prompt.

Cheap, not random: a segment is a window into one fixed table, marked by its seed at the front.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from random import Random

from headrace_workload.arrival import Segment

_TABLE_SIZE = 1 << 17
_WORDS = (
    *("water", "wheel", "mill", "gate", "channel", "stream", "flow", "river", "stone", "grain", "belt", "shaft"),
    *("turn", "lift", "fall", "weir", "pond", "spill", "drop", "steady", "sluice", "bank", "level", "depth"),
    *("head", "race", "tail", "bucket"),
)


class TokenTable:
    """Token ids below `vocab_size`, the lowest `num_reserved` never among them."""

    def __init__(self, vocab_size: int, num_reserved: int = 16) -> None:
        self._low, self._span = num_reserved, vocab_size - num_reserved
        assert self._span > 1, "a vocabulary has ids beyond the reserved ones"
        rng = Random(vocab_size)
        self._ids = array("I", rng.choices(range(num_reserved, vocab_size), k=_TABLE_SIZE))

    def ids(self, segments: Iterable[Segment]) -> array[int]:
        """The ids of the segments one after the other."""
        found = array("I")
        for segment in segments:
            found.extend(self._segment(segment))
        return found

    def _segment(self, segment: Segment) -> array[int]:
        start, count = segment.seed % _TABLE_SIZE, segment.num_tokens
        ids = self._ids[start : start + count]
        while len(ids) < count:
            ids.extend(self._ids[: count - len(ids)])
        # Other seeds share the window: the first ids spell the seed, so that no two segments begin alike.
        mark = segment.seed
        for place in range(min(4, count)):
            mark, digit = divmod(mark, self._span)
            ids[place] = self._low + digit
        return ids


def text_of(segments: Iterable[Segment]) -> str:
    """Words, one for each token of each segment (tokenizers differ: their count will be near it)."""
    words: list[str] = []
    for segment in segments:
        rng = Random(segment.seed)
        words.extend(rng.choices(_WORDS, k=segment.num_tokens))
    return " ".join(words)
