"""What routers see of a replica: state, load at least each second, coefficients, and the changes of its prefix cache.

Block events are numbered within an epoch. A watcher that asks for a number that is gone, or of another epoch, gets the
whole list first. Knows no router.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from headrace.v1 import worker_pb2
from headrace_worker.dispatch import Dispatch
from headrace_worker.messages import Command, ListPages, PageList
from headrace_worker.perf.step_model import StepModel
from headrace_worker.replica import Replica
from headrace_worker.scheduling.load import Load
from headrace_worker.scheduling.page_events import PageChange, PageEvent, PageEventBatch
from headrace_worker.transfer.rate import TransferRate

LOAD_S = 0.9
# Changes of load are told no faster than this.
LEAST_S = 0.05
_KEPT_EVENTS = 65_536
_PER_MESSAGE = 4096
_LIST_S = 10.0


class PageLog:
    """The last page events, and the complete list on demand. `send` asks the engine for that list."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self.next_seq = 0
        self.epoch = 1
        self._events: deque[PageEvent] = deque(maxlen=_KEPT_EVENTS)
        self._send = send
        self._lists: list[asyncio.Future[PageList]] = []

    def extend(self, batch: PageEventBatch) -> None:
        if batch.lost or batch.epoch != self.epoch:
            self._restart(batch.epoch, batch.events[0].seq if batch.events else 0)
        # A list may have come that is ahead of these events.
        news = [event for event in batch.events if event.seq >= self.next_seq]
        self._events.extend(news)
        if news:
            self.next_seq = news[-1].seq + 1

    def since(self, seq: int) -> list[PageEvent] | None:
        """Events from number `seq` on; None if some of them are gone."""
        if seq >= self.next_seq:
            return []
        first = self._events[0].seq if self._events else self.next_seq
        if seq < first:
            return None
        return list(itertools.islice(self._events, seq - first, None))

    async def list_pages(self) -> PageList:
        """Raises TimeoutError if the engine does not answer."""
        waiter: asyncio.Future[PageList] = asyncio.get_running_loop().create_future()
        self._lists.append(waiter)
        self._send(ListPages())
        async with asyncio.timeout(_LIST_S):
            return await waiter

    def note_list(self, pages: PageList) -> None:
        if pages.epoch != self.epoch:
            self._restart(pages.epoch, pages.next_seq)
        for waiter in self._lists:
            if not waiter.done():
                waiter.set_result(pages)
        self._lists.clear()

    def _restart(self, epoch: int, next_seq: int) -> None:
        self._events.clear()
        self.epoch, self.next_seq = epoch, next_seq


class Watch:
    """One router's subscription."""

    def __init__(self, replica: Replica, dispatch: Dispatch, pages: PageLog) -> None:
        self._replica, self._dispatch, self._pages = replica, dispatch, pages
        self._seq = 0
        self._num_decisions = dispatch.num_decisions

    async def events(self, request: worker_pb2.WatchRequest) -> AsyncIterator[worker_pb2.WatchEvent]:
        """State first; then whatever changes, and the load at least each second. Ends when the replica is gone."""
        replica = self._replica
        state = worker_pb2.REPLICA_STATE_UNSPECIFIED
        # The number of the next block event to send; None begins with the whole list.
        position = request.block_seq + 1 if request.epoch == replica.epoch else None
        epoch = replica.epoch
        model: StepModel | None = None
        num_transfers = -1
        while True:
            version = replica.version
            if epoch != replica.epoch:
                epoch, position = replica.epoch, None
            if replica.state != state:
                state = replica.state
                yield self._event(state=state)
            yield self._event(load=self._load())
            if replica.step_model is not None and replica.step_model is not model:
                model = replica.step_model
                yield self._event(step_model=_to_step_model(model))
            if replica.config.role == "decode" and replica.transfer_rate.num_samples != num_transfers:
                num_transfers = replica.transfer_rate.num_samples
                yield self._event(transfer_model=_to_transfer_model(replica.transfer_rate))
            if state == worker_pb2.REPLICA_STATE_GONE:
                return
            if request.want_blocks and replica.description is not None:
                messages, position = await self._blocks(position)
                for message in messages:
                    yield self._event(blocks=message)
            await asyncio.sleep(LEAST_S)
            await replica.changed(version, LOAD_S)

    def _event(self, **what: Any) -> worker_pb2.WatchEvent:
        event = worker_pb2.WatchEvent(epoch=self._replica.epoch, seq=self._seq, **what)
        self._seq += 1
        return event

    def _load(self) -> worker_pb2.Load:
        load, config = self._replica.load, self._replica.config
        decisions = self._dispatch.decisions_since(self._num_decisions)
        self._num_decisions = self._dispatch.num_decisions
        attached = sorted(self._dispatch.attached)
        message = worker_pb2.Load(decisions=decisions, max_waiting=config.max_waiting, gateways=attached)
        if load is not None:
            message.MergeFrom(_to_load(load))
        elif self._replica.description is not None:
            message.num_total_pages = self._replica.description.num_pages
        return message

    async def _blocks(self, position: int | None) -> tuple[list[worker_pb2.BlockEvents], int]:
        events = None if position is None else self._pages.since(position)
        if events is not None:
            assert position is not None, "events without a position"
            return _to_blocks(position, events), position + len(events)
        pages = await self._pages.list_pages()
        return _to_relist(pages), pages.next_seq


def _to_load(load: Load) -> worker_pb2.Load:
    return worker_pb2.Load(
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        num_queued_tokens=load.num_queued_tokens,
        num_promised_pages=load.num_promised_pages,
        num_held_pages=load.num_held_pages,
        num_cached_pages=load.num_cached_pages,
        num_quarantined_pages=load.num_quarantined_pages,
        num_total_pages=load.num_total_pages,
        oldest_wait_ms=load.oldest_wait_s * 1000,
    )


def _to_step_model(model: StepModel) -> worker_pb2.StepModel:
    return worker_pb2.StepModel(coefficients=model.to_mapping(), num_samples=model.num_samples)


def _to_transfer_model(rate: TransferRate) -> worker_pb2.TransferModel:
    return worker_pb2.TransferModel(
        bytes_per_s=rate.bytes_per_s, latency_s=rate.latency_s, num_samples=rate.num_samples
    )


def _to_blocks(first_seq: int, events: list[PageEvent]) -> list[worker_pb2.BlockEvents]:
    """One BlockEvent per change, so that `first_seq` plus its place is its number."""
    messages = []
    for start in range(0, len(events), _PER_MESSAGE):
        part = [_to_block(event) for event in events[start : start + _PER_MESSAGE]]
        messages.append(worker_pb2.BlockEvents(first_seq=first_seq + start, events=part))
    return messages


def _to_block(event: PageEvent) -> worker_pb2.BlockEvent:
    if event.change is PageChange.CLEARED or event.key is None:
        return worker_pb2.BlockEvent(cleared=True)
    if event.change is PageChange.STORED:
        return worker_pb2.BlockEvent(stored=event.key.chain)
    return worker_pb2.BlockEvent(evicted=event.key.chain)


def _to_relist(pages: PageList) -> list[worker_pb2.BlockEvents]:
    """`first_seq` of every part is the number of the first change that the list does not contain."""
    chains = [key.chain for key in pages.keys]
    parts = [chains[start : start + _PER_MESSAGE] for start in range(0, len(chains), _PER_MESSAGE)] or [[]]
    messages = []
    for index, part in enumerate(parts):
        message = worker_pb2.BlockEvents(
            first_seq=pages.next_seq, relist_begin=index == 0, relist_end=index == len(parts) - 1
        )
        if part:
            message.events.append(worker_pb2.BlockEvent(stored=b"".join(part)))
        messages.append(message)
    return messages
