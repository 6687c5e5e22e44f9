"""The replica's side of the registry: heartbeats out, directives in. While the registry is away, everything goes on.

Knows no engine. An answer that does not come changes nothing: the replica serves until it is told to leave.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import grpc

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, worker_pb2
from headrace_kit.lifecycle import backoff_s, cancel_and_wait
from headrace_worker.replica import Replica, card_digest

log = logging.getLogger(__name__)
BEAT_S = 1.0
LEAST_S = 0.1
_CHUNK_BYTES = 256 * 1024
_PUT_S = 30.0


class Orders(Protocol):
    """What a directive can ask of the process."""

    async def drain_and_leave(self, deadline_s: float) -> None:
        """Finish what runs, then stop the process."""

    def leave(self) -> None:
        """Stop the process now."""


class Agent:
    """Registers one replica with the control plane behind `channel`."""

    def __init__(
        self,
        replica: Replica,
        channel: grpc.aio.Channel,
        http: str,
        orders: Orders,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._replica, self._http, self._orders, self._sleep = replica, http, orders, sleep
        self._fleet = fleet_pb2_grpc.FleetStub(channel)
        self._leaving: asyncio.Task[None] | None = None
        self.said_goodbye = asyncio.Event()

    async def run(self) -> None:
        """Until the replica is gone: one session after the other, with back-off between them."""
        attempt = 0
        while self._replica.state != worker_pb2.REPLICA_STATE_GONE:
            try:
                if await self._session():
                    attempt = 0
            except grpc.RpcError as error:
                code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else "unknown"
                log.warning("registry_away", extra={"code": code})
            await self._sleep(backoff_s(attempt))
            attempt += 1

    async def _session(self) -> bool:
        """One Register stream; returns whether the registry ever answered."""
        call = self._fleet.Register()
        answered = False

        async def listen() -> None:
            nonlocal answered
            while (directive := await call.read()) is not grpc.aio.EOF:
                if not answered:
                    log.info("registered", extra={"lease_ms": directive.lease_ms})
                answered = True
                await self._obey(directive)

        listening = asyncio.create_task(listen())
        beating = asyncio.create_task(self._beat(call))
        await asyncio.wait({listening, beating}, return_when=asyncio.FIRST_COMPLETED)
        call.cancel()
        await cancel_and_wait(listening, beating)
        for task in (listening, beating):
            if not task.cancelled() and (error := task.exception()) is not None and not answered:
                raise error
        return answered

    async def _beat(self, call: Any) -> None:
        """Every second, and soon after every change."""
        replica = self._replica
        while True:
            version, state, progress = replica.version, replica.state, replica.progress
            await call.write(fleet_pb2.Heartbeat(replica=self.row()))
            if state == worker_pb2.REPLICA_STATE_GONE:
                await call.done_writing()
                self.said_goodbye.set()
                return
            at_s = asyncio.get_running_loop().time() + BEAT_S
            while (state, progress) == (replica.state, replica.progress) and (left_s := _left_s(at_s)) > 0:
                await replica.changed(version, left_s)
                version = replica.version
            await self._sleep(LEAST_S)

    async def _obey(self, directive: fleet_pb2.Directive) -> None:
        kind = directive.WhichOneof("directive")
        if kind == "drain" and self._leaving is None:
            log.info("told_to_drain", extra={"deadline_ms": directive.drain.deadline_ms})
            self._leaving = asyncio.create_task(self._orders.drain_and_leave(directive.drain.deadline_ms / 1000))
        elif kind == "stop" and directive.stop:
            log.info("told_to_stop")
            self._orders.leave()
        elif kind == "send_card" and directive.send_card and self._replica.description is not None:
            await self._send_card(self._replica.description.card)

    async def _send_card(self, card: bytes) -> None:
        try:
            await self._fleet.PutArtifact(_chunks(card), timeout=_PUT_S)
            log.info("card_sent", extra={"digest": card_digest(card).hex()})
        except grpc.RpcError as error:
            log.warning("card_not_sent", extra={"error": str(error)})

    def row(self) -> fleet_pb2.Replica:
        """What the registry is to know of this replica."""
        replica = self._replica
        shape = replica.describe()
        return fleet_pb2.Replica(
            ref=replica.ref,
            pool=shape.pool,
            model=shape.model or replica.config.model,
            revision=shape.revision or replica.config.revision,
            state=replica.state,
            card_digest=shape.card_digest,
            fingerprint=shape.fingerprint,
            domains=shape.domains,
            progress=replica.progress,
            pid=os.getpid(),
            role=shape.role,
            http=self._http,
        )


def _left_s(at_s: float) -> float:
    return at_s - asyncio.get_running_loop().time()


async def _chunks(card: bytes) -> AsyncIterator[fleet_pb2.ArtifactChunk]:
    for start in range(0, len(card), _CHUNK_BYTES):
        chunk = fleet_pb2.ArtifactChunk(data=card[start : start + _CHUNK_BYTES])
        if start == 0:
            chunk.digest, chunk.total_bytes, chunk.kind = card_digest(card), len(card), "model_card"
        yield chunk
