"""Two torch engines of this process, one prefilling for the other over a real transport, driven by hand."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from headrace_worker.execution.torch_runner import TorchRunner
from headrace_worker.scheduling.events import PagesWanted
from headrace_worker.scheduling.plan import PageExport
from headrace_worker.scheduling.request import HandOff, Request, SamplingParams
from headrace_worker.transfer.destination import Destination, PullState
from headrace_worker.transfer.image import PageImage
from headrace_worker.transfer.pages import Extent, PoolImages
from headrace_worker.transfer.transport import Carried, Lease
from headrace_worker.transfer.transports import make_transport
from tests.unit.worker.execution.engine_bench import EngineBench

LEASE = Lease(3, 77)
Tamper = Callable[[Carried], Carried]


class EnginePair:
    """`ready` keeps what the prefill side said, in its order: (export, first layer, end)."""

    def __init__(self, source: TorchRunner, target: TorchRunner, transport: str, tamper: Tamper | None = None) -> None:
        self.source, self.target = EngineBench(source), EngineBench(target)
        self.ready: list[tuple[PageExport, int, int]] = []
        self.num_groups = 0
        source.watch_pages(lambda exports, *layers: self.ready.extend((export, *layers) for export in exports))
        there, here = (
            PoolImages([PageImage.open(ref) for ref in runner.describe().images]) for runner in (source, target)
        )
        for image in there.images:
            image.slots[LEASE.slot] = LEASE.generation
        way = make_transport(transport)
        self._near, self._far = way.source(there), way.target(here)
        self._far.open(self._near.opening(LEASE), LEASE)
        self._tamper = tamper or (lambda carried: carried)

    def submit(self, ids: Sequence[int], max_output: int, **sampling: Any) -> int:
        bench = self.target
        handle, bench._next = bench._next, bench._next + 1
        params = SamplingParams(**({"temperature": 0.0, "ignore_eos": True} | sampling))
        ids = array("I", ids)
        bench.engine.submit(Request(handle, f"r{handle}", 1, ids, max_output, 1, params, hand_off=HandOff.RECEIVE))
        return handle

    def run(self) -> None:
        """Every hand-off by itself, then whatever is left."""
        while self.target.engine.has_work:
            self.target.step()
            for event in list(self.target.events):
                if isinstance(event, PagesWanted):
                    self.target.events.remove(event)
                    self._hand_off(event)
        assert self.target.engine.scheduler.pool.num_quarantined == 0

    def _hand_off(self, wanted: PagesWanted) -> None:
        held = next(
            group for group in self.target.engine.scheduler.running.held if group.request.handle == wanted.handle
        )
        prompt = held.prompt_ids[: wanted.num_tokens]
        engine, handle = self.source.engine, 1000 + wanted.handle
        engine.submit(Request(handle, f"p{handle}", 1, prompt, 1, hand_off=HandOff.SEND, from_page=wanted.first_page))
        while engine.has_work:
            self.source.step()
        shape = self._far.images.shape
        pull = Destination(Extent(0, shape.num_layers, wanted.first_page, len(wanted.pages)), 0.0, 1.0)
        while self.ready:
            export, first, end = self.ready.pop(0)
            if not export.pages:
                continue
            self.num_groups += 1
            extent = Extent(first, end - first, export.first_page, len(export.pages))
            at = export.first_page - wanted.first_page
            pages = wanted.pages[at : at + len(export.pages)]
            assert pull.begin(extent)
            carried = self._tamper(self._near.carry(extent, export.pages))
            self._far.take(extent, carried, export.pages, pages)
            pull.end(extent, arrived=True)
        assert pull.state is PullState.COMPLETE
        engine.end_transfer(handle)
        self.target.engine.received(wanted.handle)
