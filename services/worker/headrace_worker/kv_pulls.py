"""Hand-offs to here: for every prompt that the engine wants from elsewhere, one pull until it is there or will not be.

    PagesWanted --Pull--> prefill replica --groups--> images --all checked--> Received
                                          any fault, abort, silence --------> ReceiveFailed, then EndTransfer

A replica's health never depends on this: a pull that fails ends its own request and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc

from headrace.v1 import worker_pb2
from headrace_kit.lifecycle import cancel_and_wait, report_crash
from headrace_worker.attempts import Attempt
from headrace_worker.kv_servicer import to_its_end, to_layout
from headrace_worker.kv_sources import Sources
from headrace_worker.messages import Command, EndTransfer, Received, ReceiveFailed
from headrace_worker.page_groups import Arrived, drain, open_pull, read
from headrace_worker.replica import Replica
from headrace_worker.scheduling.events import Event, Finished, PagesWanted
from headrace_worker.transfer.destination import Destination, PullState
from headrace_worker.transfer.pages import Extent
from headrace_worker.transfer.rate import TransferRate
from headrace_worker.transfer.shape import HandOffError
from headrace_worker.transfer.transport import Carried, Lease, TargetEnd, Transport
from headrace_worker.transfer.transports import make_transport

log = logging.getLogger(__name__)
PATIENCE_S = 5.0
_LOOK_S = 0.2
_RENEWALS_PER_LEASE = 3
# Of one pull: with more than one, the cores of a small host are busy while the next group is read.
_NUM_AT_ONCE = 2
_GOODBYE_S = 1.0
# Whoever has all pages waits no longer for what they cost.
_LAST_WORD_S = 1.0


class PullTally(NamedTuple):
    """Of all pulls that began here."""

    begun: int
    received: int
    failed: int
    under_way: int


@dataclass(eq=False)
class _Pull:
    wanted: PagesWanted
    attempt: Attempt
    transfer_id: str
    destination: Destination
    target: TargetEnd
    call: Any = None
    generation: int = 0
    num_bytes: int = 0
    waited_s: float = 0.0
    complete_s: float = 0.0


class Pulls:
    """`connect` opens a channel to a replica; it is kept for the next pull."""

    def __init__(
        self,
        replica: Replica,
        sources: Sources,
        send: Callable[[Command], None],
        connect: Callable[[str], grpc.aio.Channel],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replica, self._sources, self._send = replica, sources, send
        self._connect, self._clock = connect, clock
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._transport: Transport | None = None
        self._one_sided = False
        self._threads = ThreadPoolExecutor(2, "kv-receive")
        self._pulls: dict[int, _Pull] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._num_begun = self._num_received = self._num_failed = 0
        self.num_late = 0
        self.rate = TransferRate()

    @property
    def tally(self) -> PullTally:
        return PullTally(self._num_begun, self._num_received, self._num_failed, len(self._pulls))

    def note(self, event: Event, attempt: Attempt) -> None:
        """Every event of an attempt: one wants pages, another ends the wish."""
        if isinstance(event, PagesWanted):
            self.begin(event, attempt)
        elif isinstance(event, Finished) and sum(not choice.ended for choice in attempt.choices) == 1:
            self.abort(attempt.handle, event.reason)

    def begin(self, wanted: PagesWanted, attempt: Attempt) -> None:
        """From the event loop, when the engine wants pages."""
        self._num_begun += 1
        try:
            pull = self._prepare(wanted, attempt)
        except HandOffError as error:
            log.error("hand_off_impossible", extra={"response_id": wanted.response_id, "detail": str(error)})
            self._give_up(wanted.handle, error.reason)
            self._send(EndTransfer(wanted.handle))
            return
        self._pulls[wanted.handle] = pull
        task = asyncio.create_task(self._run(pull))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        report_crash("hand_off", task)

    def abort(self, handle: int, reason: str) -> None:
        """The request has ended, whyever. Idempotent."""
        pull = self._pulls.get(handle)
        if pull is not None:
            pull.destination.abort(reason)
            # A reader by itself stays for a word more: told that its reads are over, the source need not wait.
            if pull.call is not None and not self._one_sided:
                pull.call.cancel()

    def look(self) -> None:
        """From time to time."""
        if self._transport is not None:
            self._transport.look()

    async def close(self) -> None:
        for handle in list(self._pulls):
            self.abort(handle, "replica_draining")
        await cancel_and_wait(*self._tasks)
        for channel in self._channels.values():
            await channel.close()

    def _prepare(self, wanted: PagesWanted, attempt: Attempt) -> _Pull:
        images = self._sources.images
        if self._transport is None:
            self._transport = make_transport(self._replica.config.kv_transport)
            self._one_sided = self._transport.one_sided
        whole = Extent(0, images.shape.num_layers, wanted.first_page, len(wanted.pages))
        destination = Destination(whole, self._clock(), PATIENCE_S)
        transfer_id = f"{self._replica.replica_id}/{self._replica.epoch}/{next(self._numbers)}"
        return _Pull(wanted, attempt, transfer_id, destination, self._transport.target(images))

    async def _run(self, pull: _Pull) -> None:
        destination = pull.destination
        began_s = self._clock()
        try:
            await self._receive(pull)
        except HandOffError as error:
            log.warning("hand_off_failed", extra={"transfer": pull.transfer_id, "detail": str(error)})
            destination.abort(error.reason)
        except grpc.RpcError as error:
            code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else "unknown"
            log.warning("hand_off_failed", extra={"transfer": pull.transfer_id, "code": code})
            destination.abort("prefill_lost")
        except asyncio.CancelledError:
            if destination.state is PullState.OPEN:
                raise
        finally:
            pull.target.close()
            destination.abort("prefill_lost")  # whatever ended it too soon; no-op once it is complete
            self._settle(pull, began_s)
        await self._say_goodbye(pull)

    def _settle(self, pull: _Pull, began_s: float) -> None:
        """The engine hears what became of it."""
        destination, handle = pull.destination, pull.wanted.handle
        assert destination.released, "no operation outlives its pull"
        del self._pulls[handle]
        self.num_late += destination.num_late
        if destination.state is PullState.COMPLETE:
            self._num_received += 1
            self.rate.add(pull.num_bytes, self._clock() - began_s - pull.waited_s)
            self._replica.note_transfer_rate(self.rate)
            self._send(Received(handle))
        else:
            self._give_up(handle, destination.reason)
            self._send(EndTransfer(handle))

    def _give_up(self, handle: int, reason: str) -> None:
        self._num_failed += 1
        self._send(ReceiveFailed(handle, reason))

    async def _receive(self, pull: _Pull) -> None:
        pull.call = open_pull(self._channel(pull))
        keeping = asyncio.create_task(self._keep(pull))
        try:
            await pull.call.write(self._start(pull))
            await self._take_all(pull)
        finally:
            await cancel_and_wait(keeping)

    async def _take_all(self, pull: _Pull) -> None:
        """Groups are copied while others come in. The last one, without pages, says what they cost."""
        taking: deque[asyncio.Task[None]] = deque()
        try:
            while (arrived := await read(pull.call)) is not None:
                pull.destination.hear(self._clock())
                if len(taking) == _NUM_AT_ONCE:
                    await taking.popleft()
                if pull.destination.state is PullState.ABORTED:
                    return
                if not pull.generation:
                    await self._open(pull, arrived.group)
                taking.append(asyncio.create_task(self._take(pull, arrived)))
                if arrived.group.last:
                    break
            while taking:
                await taking.popleft()
        finally:
            await asyncio.gather(*taking, return_exceptions=True)

    async def _open(self, pull: _Pull, group: worker_pb2.PageGroup) -> None:
        """The first group says where the others will come from, or why not."""
        if not group.error:
            lease = Lease(_slot(group), group.generation)
            await to_its_end(self._threads, pull.target.open, group.segment, lease)
            pull.generation = group.generation

    async def _take(self, pull: _Pull, arrived: Arrived) -> None:
        group = arrived.group
        pull.waited_s += group.waited_us / 1e6
        pull.attempt.prefill_device_us += group.device_us
        if group.error:
            pull.destination.abort(group.error if group.error == "kv_expired" else "prefill_lost")
            return
        if group.generation != pull.generation or group.transfer_id != pull.transfer_id:
            raise HandOffError("a group of another transfer")
        if not group.num_pages:
            return
        extent = Extent(group.first_layer, group.num_layers, group.first_page, group.num_pages)
        if not pull.destination.begin(extent):
            return
        first = extent.first_page - pull.wanted.first_page
        pages = pull.wanted.pages[first : first + extent.num_pages]
        carried, is_here = Carried(group.checksum, (arrived.payload,)), False
        try:
            await to_its_end(self._threads, pull.target.take, extent, carried, tuple(group.source_pages), pages)
            is_here = True
        finally:
            pull.destination.end(extent, arrived=is_here)
            pull.complete_s = self._clock()
            pull.destination.hear(pull.complete_s)
        pull.num_bytes += self._sources.images.payload_bytes(extent.num_layers, extent.num_pages)

    async def _say_goodbye(self, pull: _Pull) -> None:
        """Ack, or abort; nothing depends on its arrival: the lease ends by itself."""
        call, name = pull.call, pull.transfer_id
        try:
            async with asyncio.timeout(_GOODBYE_S):
                if call.done():
                    return
                if pull.destination.state is not PullState.COMPLETE:
                    abort = worker_pb2.PullAbort(reason=pull.destination.reason)
                    await call.write(worker_pb2.PullCommand(transfer_id=name, abort=abort))
                # After an abort too: reads are over, and the source need not wait for the lease's end.
                ack = worker_pb2.PullAck(generation=pull.generation)
                await call.write(worker_pb2.PullCommand(transfer_id=name, ack=ack))
                await call.done_writing()
                await drain(call)
        except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError):
            log.info("hand_off_goodbye_lost", extra={"transfer": pull.transfer_id})
        finally:
            call.cancel()

    async def _keep(self, pull: _Pull) -> None:
        """Renew the lease while it is waited for, and notice silence."""
        lease_s = self._replica.config.kv_lease_s
        renewed_s = self._clock()
        while True:
            await asyncio.sleep(_LOOK_S)
            now = self._clock()
            pull.destination.tick(now)
            silent = pull.destination.state is PullState.COMPLETE and now - pull.complete_s > _LAST_WORD_S
            if silent or pull.destination.state is PullState.ABORTED:
                pull.call.cancel()
                return
            if pull.generation and now - renewed_s >= lease_s / _RENEWALS_PER_LEASE:
                renewed_s = now
                renew = worker_pb2.PullRenew(lease_ms=round(lease_s * 1000))
                await pull.call.write(worker_pb2.PullCommand(transfer_id=pull.transfer_id, renew=renew))

    def _start(self, pull: _Pull) -> worker_pb2.PullCommand:
        submit, config, wanted = pull.attempt.submit, self._replica.config, pull.wanted
        shape = self._sources.images.shape
        return worker_pb2.PullCommand(
            transfer_id=pull.transfer_id,
            start=worker_pb2.PullStart(
                response_id=submit.response_id,
                attempt=submit.attempt,
                replica_epoch=submit.prefill.epoch,
                prompt_ids=submit.prompt_ids[: 4 * wanted.num_tokens],
                chain_root=submit.chain_root,
                kv_context=self._replica.kv_context,
                layout=to_layout(shape, config.tp),
                from_token=wanted.first_page * shape.page_tokens,
                lease_ms=round(config.kv_lease_s * 1000),
                deadline_ms=submit.total_deadline_ms,
                fair_key=submit.fair_key,
                transport=config.kv_transport,
            ),
        )

    def _channel(self, pull: _Pull) -> grpc.aio.Channel:
        endpoint = pull.attempt.submit.prefill.endpoint
        if endpoint not in self._channels:
            self._channels[endpoint] = self._connect(endpoint)
        return self._channels[endpoint]


def _slot(group: worker_pb2.PageGroup) -> int:
    """The opening names it among its source pages: it has none of its own."""
    return group.source_pages[0] if group.source_pages else 0
