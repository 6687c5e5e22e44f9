"""The KvTransfer service of the contract: the prefill side of hand-offs, one stream each.

in:  start, renew*, ack | abort          out: opening, group*, last (or an error)
A stream that breaks is an abort. An empty group is a sign of life.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

from headrace.v1 import worker_pb2
from headrace_kit.lifecycle import cancel_and_wait
from headrace_worker.kv_sources import Part, Source, Sources
from headrace_worker.page_groups import encode
from headrace_worker.replica import Replica
from headrace_worker.scheduling.request import HandOff, Request
from headrace_worker.submission import unpack_ids
from headrace_worker.transfer.shape import HandOffError, KvShape

log = logging.getLogger(__name__)
Result = TypeVar("Result")
ALIVE_S = 1.0
_LEAST_LEASE_S, _MOST_LEASE_S = 0.1, 600.0


class KvTransferServicer:
    def __init__(self, replica: Replica, sources: Sources) -> None:
        self._replica, self._sources = replica, sources
        self._threads = ThreadPoolExecutor(2, "kv-send")

    async def Pull(self, request_iterator: AsyncIterator[worker_pb2.PullCommand], context: Any) -> AsyncIterator[bytes]:
        first = await anext(request_iterator, None)
        if first is None:
            return
        try:
            source = self._open(first)
        except HandOffError as error:
            log.warning("hand_off_refused", extra={"transfer": first.transfer_id, "detail": str(error)})
            yield encode(worker_pb2.PageGroup(transfer_id=first.transfer_id, error=error.reason, last=True))
            return
        listening = asyncio.create_task(self._listen(source, request_iterator))
        try:
            opening = _word(source)
            opening.segment = source.end.opening(source.place)
            opening.source_pages.append(source.place.slot)
            yield encode(opening)
            async with contextlib.aclosing(_one_ahead(self._groups(source))) as messages:
                async for message in messages:
                    yield message
            while source.lease.word:
                await self._changed(source)
        finally:
            await cancel_and_wait(listening)
            self._sources.abort(source, "stream_ended")

    def _open(self, command: worker_pb2.PullCommand) -> Source:
        """Raises HandOffError if this replica cannot, or should not, prefill this."""
        start, replica = command.start, self._replica
        if command.WhichOneof("command") != "start" or not command.transfer_id:
            raise HandOffError("a pull begins with its start")
        if not replica.ready:
            raise HandOffError(f"this replica is not ready: {replica.progress}")
        if replica.config.role == "decode":
            raise HandOffError("this replica only decodes")
        if start.replica_epoch != replica.epoch:
            raise HandOffError(f"epoch {start.replica_epoch!r} is over, this is {replica.epoch!r}")
        if start.kv_context != replica.kv_context:
            raise HandOffError("the two replicas have another KV context: model, revision or precision differ")
        self._sources.images.shape.check(to_shape(start.layout))
        page_tokens = replica.config.page_tokens
        if start.from_token % page_tokens or len(start.prompt_ids) % 4 or not start.prompt_ids:
            raise HandOffError("a pull names whole pages and packed 32-bit ids")
        request = Request(
            handle=self._sources.reserve_handle(),
            response_id=command.transfer_id,
            attempt=1,
            prompt_ids=unpack_ids(start.prompt_ids),
            max_output=1,
            queue_deadline_s=start.deadline_ms / 1000 or None,
            fair_key=start.fair_key,
            chain_root=start.chain_root,
            kv_context=start.kv_context,
            hand_off=HandOff.SEND,
            from_page=start.from_token // page_tokens,
        )
        lease_s = min(_MOST_LEASE_S, max(_LEAST_LEASE_S, start.lease_ms / 1000))
        return self._sources.open(command.transfer_id, request, start.transport or "grpc", lease_s)

    async def _groups(self, source: Source) -> AsyncGenerator[bytes, None]:
        """Until everything was sent, or an error says why not."""
        waiting_since_s = time.monotonic()
        while not (source.computed and source.over and not source.parts):
            if source.failure or not source.lease.word:
                reason = "kv_expired" if source.lease.reason == "kv_expired" else "prefill_lost"
                yield encode(_word(source, error=reason, last=True))
                return
            if not source.parts:
                if not await self._changed(source):
                    yield encode(_word(source))
                continue
            waited_us = round((time.monotonic() - waiting_since_s) * 1e6)
            try:
                yield await self._group(source, waited_us)
            except HandOffError as error:
                yield encode(_word(source, error=error.reason, last=True))
                return
            waiting_since_s = time.monotonic()
        waited_us = round((time.monotonic() - waiting_since_s) * 1e6)
        last = _word(source, last=True, waited_us=waited_us)
        last.device_us = source.device_us
        yield encode(last)

    async def _group(self, source: Source, waited_us: int) -> bytes:
        part = source.parts.popleft()
        self._sources.begin_read(source)
        try:
            message = await to_its_end(self._threads, self._message, source, part, waited_us)
        finally:
            self._sources.end_read(source)
        if not source.lease.word:
            raise HandOffError("the lease ended while its pages were read")
        return message

    def _message(self, source: Source, part: Part, waited_us: int) -> bytes:
        """From a thread: the only copy of the pages that this side makes by itself."""
        carried, group = self._sources.carry(source, part), _word(source, waited_us=waited_us)
        group.first_layer, group.num_layers, group.first_page, group.num_pages = part.extent
        group.checksum = carried.checksum
        group.source_pages.extend(part.pages)
        return encode(group, carried.payload)

    async def _listen(self, source: Source, commands: AsyncIterator[worker_pb2.PullCommand]) -> None:
        async for command in commands:
            kind = command.WhichOneof("command")
            if kind == "renew":
                self._sources.renew(source, min(_MOST_LEASE_S, command.renew.lease_ms / 1000))
            elif kind == "ack":
                self._sources.acknowledge(source, command.ack.generation)
            elif kind == "abort":
                self._sources.abort(source, command.abort.reason or "client")

    @staticmethod
    async def _changed(source: Source) -> bool:
        """Whether something happened within the time after which a sign of life is due."""
        source.changed.clear()
        try:
            async with asyncio.timeout(ALIVE_S):
                await source.changed.wait()
        except TimeoutError:
            return False
        return True


async def to_its_end(threads: Executor, work: Callable[..., Result], *args: object) -> Result:
    """Runs `work` in a thread; who is cancelled still waits: no page is free before what copies it has ended."""
    future = asyncio.get_running_loop().run_in_executor(threads, work, *args)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


async def _one_ahead(messages: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The next message is made while one is sent."""
    upcoming = asyncio.ensure_future(anext(messages, None))
    try:
        while (message := await upcoming) is not None:
            upcoming = asyncio.ensure_future(anext(messages, None))
            yield message
    finally:
        await cancel_and_wait(upcoming)
        await messages.aclose()


def _word(source: Source, error: str = "", last: bool = False, waited_us: int = 0) -> worker_pb2.PageGroup:
    """A group without pages."""
    return worker_pb2.PageGroup(
        transfer_id=source.transfer_id,
        generation=source.lease.generation,
        error=error,
        last=last,
        waited_us=waited_us,
    )


def to_shape(layout: worker_pb2.KvLayout) -> KvShape:
    return KvShape(layout.num_layers, layout.num_kv_heads, layout.head_dim, layout.dtype, layout.page_tokens)


def to_layout(shape: KvShape, tp: int) -> worker_pb2.KvLayout:
    return worker_pb2.KvLayout(
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        page_tokens=shape.page_tokens,
        tp=tp,
    )
