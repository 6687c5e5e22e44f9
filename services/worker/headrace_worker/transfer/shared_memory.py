"""The reader maps the owner's pool and copies from it: for two replicas of one host and one user, one copy in all."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from itertools import product

import numpy as np

from headrace_worker.transfer.image import ImageRef, PageImage
from headrace_worker.transfer.pages import Extent, PoolImages, check, checksum, stretches
from headrace_worker.transfer.shape import Expired, HandOffError
from headrace_worker.transfer.transport import Carried, Lease, SourceEnd, TargetEnd, Transport

# Copied and summed at once: what the cache of a core holds.
_CACHED_BYTES = 1024 * 1024


def encode_refs(images: PoolImages) -> str:
    return json.dumps([image.ref.to_plain() for image in images.images])


def open_refs(opening: str) -> PoolImages:
    """The images that an opening names. Raises HandOffError."""
    try:
        plain = json.loads(opening)
    except ValueError as error:
        raise HandOffError(f"the opening cannot be read: {error}") from error
    return PoolImages([PageImage.open(ImageRef.from_plain(each)) for each in plain])


class SharedMemorySource(SourceEnd):
    def opening(self, lease: Lease) -> str:
        return encode_refs(self.images)

    def carry(self, extent: Extent, pages: Sequence[int]) -> Carried:
        return Carried(checksum(extent, self.images.sums(extent.layers, pages)))


class Mapped:
    """Images of other processes that stay mapped from one transfer to the next: mapping is a good part of a short one.

    Threads of several transfers share it.
    """

    def __init__(self) -> None:
        self._by_opening: dict[str, PoolImages] = {}
        self._lock = threading.Lock()

    def open(self, opening: str) -> PoolImages:
        """Raises HandOffError."""
        self.forget_gone()
        with self._lock:
            if opening not in self._by_opening:
                self._by_opening[opening] = open_refs(opening)
            return self._by_opening[opening]

    def forget_gone(self) -> None:
        """Gives back the memory of processes that have ended: it is in use as long as anybody maps it."""
        with self._lock:
            for opening, images in list(self._by_opening.items()):
                if not all(image.is_there() for image in images.images):
                    del self._by_opening[opening]


class SharedMemoryTarget(TargetEnd):
    """After a copy it looks at the lease again: what was read after the lease's end is void."""

    def __init__(self, images: PoolImages, mapped: Mapped) -> None:
        super().__init__(images)
        self._mapped = mapped
        self._theirs: PoolImages | None = None
        self._lease = Lease(0, 0)

    def open(self, opening: str, lease: Lease) -> None:
        self._theirs, self._lease = self._mapped.open(opening), lease
        self.images.shape.check(self._theirs.shape)

    def take(self, extent: Extent, carried: Carried, source_pages: Sequence[int], pages: Sequence[int]) -> None:
        theirs = self._theirs
        if theirs is None:
            raise HandOffError("a group came before the opening")
        if len(source_pages) != len(pages) or not all(0 < page < theirs.num_pages for page in source_pages):
            raise HandOffError("a group names pages that the other side does not have")
        self._check_lease(theirs)
        sums = np.empty((extent.num_layers, 2, extent.num_pages), np.uint64)
        num_at_once = max(1, _CACHED_BYTES // self.images.shape.page_bytes)
        for first in range(0, extent.num_pages, num_at_once):
            some = slice(first, first + num_at_once)
            pairs = _pairs(source_pages[some], pages[some])
            for place, layer in enumerate(extent.layers):
                for source, target in product(theirs.readable(layer), self.images.of_layer(layer)):
                    _copy_layer(layer, source, target, pairs)
                # While they are in the cache.
                sums[place, :, some] = self.images.sums(range(layer, layer + 1), pages[some])[0]
        self._check_lease(theirs)
        check(extent, sums, carried.checksum)

    def close(self) -> None:
        self._theirs = None

    def _check_lease(self, theirs: PoolImages) -> None:
        if int(theirs.images[0].slots[self._lease.slot]) != self._lease.generation:
            raise Expired("the lease of the source pages has ended")


_Pairs = list[tuple[int, int, int]]
"""First page there, first page here, how many follow one another on both sides."""


def _pairs(sources: Sequence[int], targets: Sequence[int]) -> _Pairs:
    return [
        (first_source, page + start, num)
        for at, (page, count) in stretches(targets)
        for start, (first_source, num) in stretches(sources[at : at + count])
    ]


def _copy_layer(layer: int, theirs: PageImage, ours: PageImage, pairs: _Pairs) -> None:
    """The heads that both have, of one layer."""
    there, here = theirs.ref.shard, ours.ref.shard
    first = max(there.first_head, here.first_head)
    last = min(there.first_head + there.num_heads, here.first_head + here.num_heads)
    if first >= last:
        return
    read = theirs.words[layer - there.first_layer][..., first - there.first_head : last - there.first_head, :]
    write = ours.words[layer - here.first_layer][..., first - here.first_head : last - here.first_head, :]
    for source, target, num in pairs:
        write[:, target : target + num] = read[:, source : source + num]


class SharedMemoryTransport(Transport):
    name = "shared_memory"
    one_sided = True

    def __init__(self) -> None:
        self._mapped = Mapped()

    def source(self, images: PoolImages) -> SourceEnd:
        return SharedMemorySource(images)

    def target(self, images: PoolImages) -> TargetEnd:
        return SharedMemoryTarget(images, self._mapped)

    def look(self) -> None:
        self._mapped.forget_gone()
