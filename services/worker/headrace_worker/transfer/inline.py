"""Groups whose payload travels in the message itself: for any two hosts. The name says what carries the messages."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_worker.transfer.pages import Extent, PoolImages, check, checksum
from headrace_worker.transfer.transport import Carried, Lease, SourceEnd, TargetEnd, Transport


class InlineSource(SourceEnd):
    def opening(self, lease: Lease) -> str:
        return ""

    def carry(self, extent: Extent, pages: Sequence[int]) -> Carried:
        return Carried(
            checksum(extent, self.images.sums(extent.layers, pages)), self.images.pieces(extent.layers, pages)
        )


class InlineTarget(TargetEnd):
    def open(self, opening: str, lease: Lease) -> None:
        return

    def take(self, extent: Extent, carried: Carried, source_pages: Sequence[int], pages: Sequence[int]) -> None:
        payload = carried.payload[0] if len(carried.payload) == 1 else b"".join(carried.payload)
        check(extent, self.images.spread(payload, extent.layers, pages), carried.checksum)

    def close(self) -> None:
        return


class InlineTransport(Transport):
    name = "grpc"
    one_sided = False
    # gRPC copies a payload several times on its way, from a cache if it fits in one; but every message costs by itself.
    part_bytes = 4 * 1024 * 1024

    def source(self, images: PoolImages) -> SourceEnd:
        return InlineSource(images)

    def target(self, images: PoolImages) -> TargetEnd:
        return InlineTarget(images)
