"""The port between a hand-off and how its bytes travel. Two ends: one beside the pages' owner, one beside the reader.

    source.opening() --> target.open        once: where the reader finds what
    source.carry     --> target.take        per group: the payload if it travels, and its checksum

Every method may take as long as the copy takes: call it from a thread. Knows no message and no lease's length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from headrace_worker.transfer.pages import Extent, PoolImages

LONGEST_S = 10.0
"""No operation of any transport outlasts this; one that would is given up and fenced."""


Buffer = bytes | memoryview


class Carried(NamedTuple):
    """A group on its way. The payload, in pieces, is empty where the other side reads the pages by itself.

    Beside the owner the pieces may lie in the pool itself: they are copied before the read has ended.
    """

    checksum: bytes
    payload: Sequence[Buffer] = ()


class Lease(NamedTuple):
    """Where the source keeps the word of a transfer, and what it is while the pages may be read."""

    slot: int
    generation: int


class SourceEnd(ABC):
    """Beside the images of the prefill replica; serves all its transfers."""

    def __init__(self, images: PoolImages) -> None:
        self.images = images

    @abstractmethod
    def opening(self, lease: Lease) -> str:
        """What the other end must know to read."""

    @abstractmethod
    def carry(self, extent: Extent, pages: Sequence[int]) -> Carried:
        """`pages`: numbers, in this pool, of the group's pages."""


class TargetEnd(ABC):
    """Beside the images of the decode replica; one per transfer."""

    def __init__(self, images: PoolImages) -> None:
        self.images = images

    @abstractmethod
    def open(self, opening: str, lease: Lease) -> None:
        """Raises HandOffError if the other end cannot be read from here."""

    @abstractmethod
    def take(self, extent: Extent, carried: Carried, source_pages: Sequence[int], pages: Sequence[int]) -> None:
        """Fills `pages` of this pool. Raises CorruptGroup, Expired, or HandOffError if the other end is gone.

        When it returns or raises no operation writes any more.
        """

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""


class Transport(ABC):
    """One way to travel. `one_sided`: the reader reads by itself, so the source must wait for it.

    `part_bytes`: how much of a group is worth one message.
    """

    name: str
    one_sided: bool
    part_bytes: int = 16 * 1024 * 1024

    @abstractmethod
    def source(self, images: PoolImages) -> SourceEnd:
        """Raises HandOffError if this host cannot."""

    @abstractmethod
    def target(self, images: PoolImages) -> TargetEnd:
        """Raises HandOffError if this host cannot."""

    def look(self) -> None:  # noqa: B027  most keep nothing
        """From time to time: give back what is kept for processes that have ended."""
