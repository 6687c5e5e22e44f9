"""The reader maps the owner's pool and copies from it: for two replicas of one host and one user, one copy in all."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from headrace_worker.transfer.image import ImageRef, PageImage
from headrace_worker.transfer.pages import Extent, PoolImages, check, checksum, stretches
from headrace_worker.transfer.shape import Expired, HandOffError
from headrace_worker.transfer.transport import Carried, Lease, SourceEnd, TargetEnd, Transport


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


class SharedMemoryTarget(TargetEnd):
    """After a copy it looks at the lease again: what was read after the lease's end is void."""

    def __init__(self, images: PoolImages) -> None:
        super().__init__(images)
        self._theirs: PoolImages | None = None
        self._lease = Lease(0, 0)

    def open(self, opening: str, lease: Lease) -> None:
        self._theirs, self._lease = open_refs(opening), lease
        self.images.shape.check(self._theirs.shape)

    def take(self, extent: Extent, carried: Carried, source_pages: Sequence[int], pages: Sequence[int]) -> None:
        theirs = self._theirs
        if theirs is None:
            raise HandOffError("a group came before the opening")
        if len(source_pages) != len(pages) or not all(0 < page < theirs.num_pages for page in source_pages):
            raise HandOffError("a group names pages that the other side does not have")
        self._check_lease(theirs)
        parts = []
        for layer in extent.layers:
            for source in theirs.readable(layer):
                for target in self.images.of_layer(layer):
                    _copy_layer(layer, (source, source_pages), (target, pages))
            # While the layer is in the cache.
            parts.append(self.images.sums(range(layer, layer + 1), pages))
        sums = np.concatenate(parts)
        self._check_lease(theirs)
        check(extent, sums, carried.checksum)

    def close(self) -> None:
        self._theirs = None

    def _check_lease(self, theirs: PoolImages) -> None:
        if int(theirs.images[0].slots[self._lease.slot]) != self._lease.generation:
            raise Expired("the lease of the source pages has ended")


_Side = tuple[PageImage, Sequence[int]]


def _copy_layer(layer: int, source: _Side, target: _Side) -> None:
    """The heads that both have, of one layer."""
    (theirs, sources), (ours, targets) = source, target
    there, here = theirs.ref.shard, ours.ref.shard
    first = max(there.first_head, here.first_head)
    last = min(there.first_head + there.num_heads, here.first_head + here.num_heads)
    if first >= last:
        return
    read = theirs.words[layer - there.first_layer][..., first - there.first_head : last - there.first_head, :]
    write = ours.words[layer - here.first_layer][..., first - here.first_head : last - here.first_head, :]
    for at, (page, count) in stretches(targets):
        for start, (first_source, num) in stretches(sources[at : at + count]):
            write[:, page + start : page + start + num] = read[:, first_source : first_source + num]


class SharedMemoryTransport(Transport):
    name = "shared_memory"
    one_sided = True

    def source(self, images: PoolImages) -> SourceEnd:
        return SharedMemorySource(images)

    def target(self, images: PoolImages) -> TargetEnd:
        return SharedMemoryTarget(images)
