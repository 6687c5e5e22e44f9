"""Keeps one replica's pages in the prefix index, while this router holds the replica's lease. Decides nothing.

The replica's changes come over a watch of their own; what is missing is listed again, what Redis lost is written again
from the mirror, and all of it is written again before it expires. Only hints depend on this: nothing waits for it.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Any

import grpc

from headrace.v1 import worker_pb2, worker_pb2_grpc
from headrace_kit import channels, telemetry
from headrace_kit.lifecycle import backoff_s, cancel_and_wait
from headrace_router.per_replica import PerReplica
from headrace_router.prefix_index import MAX_KEYS_PER_REPLICA, Change, GapError, Mirror, record_of
from headrace_router.redis_pages import IndexAwayError, LeaseLostError, RedisPages
from headrace_router.replicas import Replica, ReplicaTable
from headrace_router.watcher import Credentials

log = logging.getLogger(__name__)
# Well within a lease, so that one late beat does not lose it.
BEAT_S = 2.0
_BACKOFF_CAP_S = 2.0
_BUFFERED = 64
_gaps = telemetry.counter("prefix_gaps_total", "Lists that were asked for anew because changes were missing")
_rewrites = telemetry.counter("prefix_rewrites_total", "Replicas whose pages were written again", ["because"])


class IndexKeeper:
    def __init__(
        self,
        table: ReplicaTable,
        replica: Replica,
        pages: RedisPages,
        credentials: Credentials,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table, self._replica, self._pages, self._credentials = table, replica, pages, credentials
        self._clock = clock
        self._mirror = Mirror()
        self._kv_context = b""
        self._owed: set[bytes] = set()
        """Keys that may be in the index although the replica has them no more."""
        self._stale, self._refresh_at = False, 0.0

    @property
    def _id(self) -> str:
        return self._replica.row.ref.id

    async def run(self) -> None:
        """For ever: waits for the lease, and keeps the pages until it is lost."""
        while True:
            described = self._replica.description
            if described is not None and await self._pages.acquire(described.kv_context, self._id):
                self._kv_context = described.kv_context
                with contextlib.suppress(LeaseLostError):
                    await self._keep()
            await asyncio.sleep(BEAT_S * random.uniform(0.5, 1.0))

    async def _keep(self) -> None:
        """While the lease is held and the replica keeps its KV context."""
        self._mirror.distrust()
        log.info("prefix_lease_taken", extra={"replica": self._id})
        ours, endpoint = self._credentials, self._replica.row.ref.endpoint
        try:
            async with channels.connect(endpoint, token=ours.token, peer="worker", tls=ours.tls) as channel:
                stub = worker_pb2_grpc.EngineStub(channel)
                while self._same_context():
                    await self._follow(stub)
                await self._leave()
        finally:
            if self._table.get(self._id) is not self._replica:
                await self._leave()
            await self._pages.release(self._kv_context, self._id)

    async def _follow(self, stub: Any) -> None:
        """Until changes are missing or the KV context is another."""
        news: asyncio.Queue[worker_pb2.WatchEvent] = asyncio.Queue(_BUFFERED)
        reading = asyncio.create_task(self._read(stub, news))
        try:
            while self._same_context():
                event = None
                with contextlib.suppress(TimeoutError):
                    event = await asyncio.wait_for(news.get(), BEAT_S)
                await self._take(event)
        except GapError:
            _gaps.inc()
            self._mirror.distrust()
        finally:
            await cancel_and_wait(reading)

    async def _read(self, stub: Any, news: asyncio.Queue[worker_pb2.WatchEvent]) -> None:
        attempt = 0
        while True:
            epoch, seq = self._mirror.last_seen
            request = worker_pb2.WatchRequest(
                router_id=self._credentials.router_id, epoch=epoch, block_seq=seq, want_blocks=True
            )
            with contextlib.suppress(grpc.aio.AioRpcError):  # the watcher tells that the replica is away
                async for event in stub.Watch(request):
                    attempt = 0
                    if event.WhichOneof("event") == "blocks":
                        await news.put(event)
            await asyncio.sleep(backoff_s(attempt, cap_s=_BACKOFF_CAP_S))
            attempt += 1

    async def _take(self, event: worker_pb2.WatchEvent | None) -> None:
        """One message, or a beat without one, which renews the lease and finds out whether Redis lost anything."""
        change, whole = Change(), False
        if event is not None:
            change, whole = self._mirror.take(event.epoch, event.blocks), event.blocks.relist_end
            if change == Change() and not whole:
                return
        if self._mirror.epoch and not whole and (self._stale or self._clock() >= self._refresh_at):
            _rewrites.labels("lost" if self._stale else "expiry").inc()
            change, whole = Change(tuple(self._mirror.keys), change.removed), True
        await self._write(change, whole)

    async def _write(self, change: Change, whole: bool) -> None:
        if self._owed:
            change = Change(change.added, tuple((self._owed | set(change.removed)) - self._mirror.keys))
        record = record_of(self._id, self._mirror.epoch)
        try:
            known = await self._pages.write(self._kv_context, self._id, record, change, whole=whole)
        except IndexAwayError as error:
            log.debug("prefix_pages_not_written", extra={"replica": self._id, "detail": str(error)})
            self._stale = True
            self._owed.update(change.removed)
            if len(self._owed) > MAX_KEYS_PER_REPLICA:  # so long away that what is there expires anyhow
                self._owed.clear()
            await asyncio.sleep(BEAT_S / 2)
            return
        self._owed.clear()
        self._stale = not known
        if whole:
            self._refresh_at = self._clock() + self._pages.expiry_s / 3 * random.uniform(0.8, 1.0)

    def _same_context(self) -> bool:
        described = self._replica.description
        return described is not None and described.kv_context == self._kv_context

    async def _leave(self) -> None:
        """The replica is no more, or another one: takes its pages out of the index, if that can be done."""
        record, gone = record_of(self._id, self._mirror.epoch), Change(removed=tuple(self._mirror.keys | self._owed))
        self._mirror, self._owed = Mirror(), set()
        with contextlib.suppress(IndexAwayError, LeaseLostError):
            await self._pages.write(self._kv_context, self._id, record, gone)


def keepers(table: ReplicaTable, pages: RedisPages, credentials: Credentials) -> PerReplica:
    """One keeper per listed replica; each of several routers has the leases of some."""
    return PerReplica(table, "prefix", lambda replica: IndexKeeper(table, replica, pages, credentials).run())
