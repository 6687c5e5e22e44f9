"""Hand-offs from here: what other replicas asked this one to prefill, and until when its pages are theirs to read.

    open --Submit--> engine --PagesReady--> parts --carry--> [the stream]        ack, abort, lease end --> EndTransfer

Knows the engine's messages and the leases, not the stream.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace_worker.config import WorkerConfig
from headrace_worker.engine import EngineOutput
from headrace_worker.messages import Command, EndTransfer, PagesReady, Submit
from headrace_worker.replica import Replica
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.events import Finished, Refused
from headrace_worker.scheduling.request import Request
from headrace_worker.transfer.image import NUM_SLOTS, PageImage
from headrace_worker.transfer.pages import Extent, PoolImages
from headrace_worker.transfer.shape import Expired, HandOffError
from headrace_worker.transfer.source_lease import SourceLease
from headrace_worker.transfer.transport import LONGEST_S, Carried, Lease, SourceEnd
from headrace_worker.transfer.transports import make_transport


class Part(NamedTuple):
    """A group that can travel: what of the prompt it is, and the numbers of its pages in this pool."""

    extent: Extent
    pages: tuple[int, ...]


@dataclass(eq=False)
class Source:
    """One hand-off. `changed` is set whenever there is something new to look at."""

    handle: int
    transfer_id: str
    lease: SourceLease
    place: Lease
    end: SourceEnd
    part_bytes: int
    parts: deque[Part] = field(default_factory=deque)
    num_layers_sent: int = 0
    computed: bool = False
    over: bool = False
    failure: str = ""
    device_us: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Tally(NamedTuple):
    """Of all hand-offs that began here."""

    begun: int
    acknowledged: int
    aborted: int
    under_way: int


class Sources:
    """`reserve` hands out an engine handle; `send` takes commands to the engine."""

    def __init__(
        self,
        replica: Replica,
        send: Callable[[Command], None],
        reserve: Callable[[int], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replica, self._send, self._reserve, self._clock = replica, send, reserve, clock
        self._config: WorkerConfig = replica.config
        self._images: PoolImages | None = None
        self._ends: dict[str, SourceEnd] = {}
        self._sources: dict[int, Source] = {}
        self._generations = itertools.count(1)
        self._free_slots = deque(range(NUM_SLOTS))
        self._num_begun = self._num_acknowledged = self._num_aborted = 0

    @property
    def images(self) -> PoolImages:
        """The pool of this replica, mapped at the first use. Raises HandOffError where there is nothing to map."""
        if self._images is None:
            described = self._replica.description
            refs = described.images if described is not None else ()
            self._images = PoolImages([PageImage.open(ref) for ref in refs])
        return self._images

    @property
    def tally(self) -> Tally:
        return Tally(self._num_begun, self._num_acknowledged, self._num_aborted, len(self._sources))

    def open(self, transfer_id: str, request: Request, transport: str, lease_s: float) -> Source:
        """Promise the pages and have the prompt computed. Raises HandOffError; then nothing has begun."""
        if not self._free_slots:
            raise HandOffError("as many hand-offs as can be are under way")
        end = self._end(transport)
        now = self._clock()
        place = Lease(self._free_slots.popleft(), next(self._generations))
        way = make_transport(transport)
        lease = SourceLease(place.generation, now, lease_s, one_sided=way.one_sided, longest_s=LONGEST_S)
        source = Source(request.handle, transfer_id, lease, place, end, way.part_bytes)
        self._sources[request.handle] = source
        self._num_begun += 1
        self._write_word(source)
        self._send(Submit(request))
        return source

    def reserve_handle(self) -> int:
        return self._reserve(1)

    def carry(self, source: Source, part: Part) -> Carried:
        """From a thread: what travels of a part."""
        return source.end.carry(part.extent, part.pages)

    def begin_read(self, source: Source) -> None:
        """Raises Expired if the lease is over."""
        if not source.lease.begin_read(self._clock()):
            self._settle(source)
            raise Expired("the lease of the source pages has ended")

    def end_read(self, source: Source) -> None:
        source.lease.end_read(self._clock())
        self._settle(source)

    def renew(self, source: Source, lease_s: float) -> None:
        source.lease.renew(self._clock(), lease_s)
        self._settle(source)

    def acknowledge(self, source: Source, generation: int) -> None:
        source.lease.acknowledge(generation, self._clock())
        self._settle(source)

    def abort(self, source: Source, reason: str) -> None:
        """Idempotent, from either side."""
        source.lease.abort(reason, self._clock())
        self._settle(source)

    def note(self, ready: PagesReady) -> None:
        """Layers of pages are whole."""
        shape = self.images.shape
        num_layers = ready.end_layer - ready.first_layer
        for export in ready.exports:
            source = self._sources.get(export.handle)
            if source is None:
                continue
            if export.pages:
                whole = Extent(ready.first_layer, num_layers, export.first_page, len(export.pages))
                source.parts.extend(_split(whole, export.pages, shape.page_bytes, source.part_bytes))
            if export.is_last and ready.end_layer == shape.num_layers:
                source.computed = True
            source.changed.set()

    def note_events(self, output: EngineOutput) -> None:
        """Requests of ours that ended in the engine."""
        for event in output.events:
            source = self._sources.get(event.handle)
            if source is None or not isinstance(event, Finished | Refused):
                continue
            source.over = True
            source.device_us = round(output.device_s.get(event.handle, 0.0) * 1e6)
            if event.reason != "prefilled":
                source.failure = event.reason
            self._settle(source)

    def look(self) -> None:
        """What time alone brings."""
        now = self._clock()
        for source in list(self._sources.values()):
            source.lease.tick(now)
            self._settle(source)

    def abort_all(self, reason: str) -> None:
        for source in list(self._sources.values()):
            self.abort(source, reason)

    def _end(self, transport: str) -> SourceEnd:
        if transport not in self._ends:
            self._ends[transport] = make_transport(transport).source(self.images)
        return self._ends[transport]

    def _write_word(self, source: Source) -> None:
        for image in self.images.images:
            image.slots[source.place.slot] = source.lease.word

    def _settle(self, source: Source) -> None:
        """After every move: readers see the word, the engine hears what it no longer needs to do."""
        if source.handle not in self._sources:
            return
        source.changed.set()
        if not source.lease.word:
            self._write_word(source)
            if not source.over:
                self._send(Cancel(source.transfer_id, reason="client"))
        if source.lease.released and source.over:
            del self._sources[source.handle]
            self._free_slots.append(source.place.slot)
            acknowledged = source.lease.reason == "acknowledged"
            self._num_acknowledged += acknowledged
            self._num_aborted += not acknowledged
            self._send(EndTransfer(source.handle))


def _split(whole: Extent, pages: tuple[int, ...], page_bytes: int, part_bytes: int) -> list[Part]:
    """Groups of up to `part_bytes`: whole layers if they are small, equal shares of one layer's pages if not."""
    layer_bytes = page_bytes * len(pages)
    num_layers = max(1, part_bytes // layer_bytes)
    num_shares = min(len(pages), -(-layer_bytes // part_bytes))
    num_pages = -(-len(pages) // num_shares)
    parts = []
    for layer in range(whole.first_layer, whole.first_layer + whole.num_layers, num_layers):
        count = min(num_layers, whole.layers.stop - layer)
        for start in range(0, len(pages), num_pages):
            some = pages[start : start + num_pages]
            parts.append(Part(Extent(layer, count, whole.first_page + start, len(some)), some))
    return parts
