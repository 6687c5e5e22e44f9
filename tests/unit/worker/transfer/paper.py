"""Two schedulers on paper machines, and hand-offs between them whose copies and endings the test decides."""

from __future__ import annotations

import itertools
from typing import Any

from headrace_worker.scheduling.audit import audit
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.events import Event, Finished, PagesWanted, Refused
from headrace_worker.scheduling.plan import PageExport, Plan
from headrace_worker.scheduling.request import HandOff, Request
from headrace_worker.transfer.destination import Destination, PullState
from headrace_worker.transfer.pages import Extent
from headrace_worker.transfer.source_lease import SourceLease
from tests.unit.worker.scheduling.fakes import Driver, Outcome, make_limits

PATIENCE_S, LEASE_S, LONGEST_S = 1.0, 2.0, 0.5


class Side(Driver):
    """One replica; what its hand-offs need to know is noted beside."""

    def __init__(self, **limits: object) -> None:
        super().__init__(make_limits(**limits))
        self.wanted: list[PagesWanted] = []
        self.exports: list[PageExport] = []
        self.ended: list[str] = []

    def note(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, PagesWanted):
                self.wanted.append(event)
            elif isinstance(event, Finished | Refused):
                self.ended.append(event.response_id)
        super().note([event for event in events if not isinstance(event, PagesWanted)])

    def step(self) -> Plan | None:
        plan = super().step()
        if plan is not None:
            self.exports.extend(plan.exports)
        return plan


class Transfer:
    """One hand-off: both machines, and the groups that have left and have not arrived."""

    def __init__(self, wanted: PagesWanted, source: Side, target: Side) -> None:
        self.wanted, self.source, self.target = wanted, source, target
        request = target.by_handle[wanted.handle].request
        prompt = tuple(request.prompt_ids)[: wanted.num_tokens]
        self.outcome = source.submit(prompt, 1, hand_off=HandOff.SEND, from_page=wanted.first_page)
        self.lease = SourceLease(1, source.now, LEASE_S, one_sided=True, longest_s=LONGEST_S)
        whole = Extent(0, 1, wanted.first_page, len(wanted.pages))
        self.pull = Destination(whole, target.now, PATIENCE_S)
        self.ready: list[PageExport] = []
        self.writing: list[tuple[Extent, PageExport]] = []
        self.over = [False, False]

    @property
    def handle(self) -> int:
        return self.outcome.request.handle

    def begin(self, export: PageExport) -> None:
        """The reader starts to read a group, if the lease is in force."""
        extent = Extent(0, 1, export.first_page, len(export.pages))
        if self.lease.word and export.pages and self.pull.begin(extent):
            self.writing.append((extent, export))

    def finish(self) -> None:
        """The oldest read ends: ids are copied, and the lease is looked at again."""
        extent, export = self.writing.pop(0)
        start = export.first_page - self.wanted.first_page
        targets = self.wanted.pages[start : start + len(export.pages)]
        for source, target in zip(export.pages, targets, strict=True):
            self.target.machine.slots[target] = list(self.source.machine.slots[source])
        self.pull.end(extent, arrived=self.lease.word == 1)

    def settle(self) -> None:
        """What both processes do when a machine has moved."""
        self.lease.tick(self.source.now)
        self.pull.tick(self.target.now)
        if self.pull.state is PullState.ABORTED:
            self.target.scheduler.receive_failed(self.wanted.handle, self.pull.reason, self.target.now)
            self.lease.abort(self.pull.reason, self.source.now)
        if self.outcome.request.response_id in self.source.ended and self.outcome.refused:
            self.pull.abort("prefill_lost")
        if not self.lease.word and not self.outcome.is_over:
            self.source.scheduler.cancel(Cancel(self.outcome.request.response_id))
        if self.pull.released and not self.over[1]:
            self.over[1] = True
            if self.pull.state is PullState.COMPLETE:
                self.lease.acknowledge(1, self.source.now)
                self.target.scheduler.received(self.wanted.handle)
            else:
                self.target.scheduler.end_transfer(self.wanted.handle)
        if self.lease.released and self.outcome.is_over and not self.over[0]:
            self.over[0] = True
            self.source.scheduler.end_transfer(self.handle)


class Pair:
    """A prefill side, a decode side, and the transfers between them."""

    def __init__(self, **limits: object) -> None:
        self.source, self.target = Side(**limits), Side(**limits)
        self.transfers: list[Transfer] = []
        self.numbers = itertools.count()

    def submit(self, prompt: Any, max_output: int, **fields: object) -> Outcome:
        return self.target.submit(prompt, max_output, hand_off=HandOff.RECEIVE, **fields)

    def step(self) -> None:
        for side in (self.source, self.target):
            side.step()
        for wanted in self.target.wanted:
            self.transfers.append(Transfer(wanted, self.source, self.target))
        self.target.wanted.clear()
        by_handle = {transfer.handle: transfer for transfer in self.transfers}
        for export in self.source.exports:
            by_handle[export.handle].ready.append(export)
        self.source.exports.clear()

    def settle(self) -> None:
        for transfer in self.transfers:
            transfer.settle()
        self.transfers = [each for each in self.transfers if not all(each.over)]

    def check(self) -> None:
        """Both audits, and no page that is read or written belongs to anybody else."""
        for side in (self.source, self.target):
            assert audit(side.scheduler) == ()

    @property
    def is_idle(self) -> bool:
        return not self.transfers and self.source.scheduler.is_idle and self.target.scheduler.is_idle


def requests_of(side: Side) -> list[Request]:
    return [outcome.request for outcome in side.outcomes.values()]
