"""A worker and the registry: heartbeats, directives, the model card; and a registry that is away or comes back."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, worker_pb2
from headrace_kit import channels
from tests.integration.worker_process import Client, eventually, script, worker


class Registry(fleet_pb2_grpc.FleetServicer):
    """Hears heartbeats and says what `directives` holds."""

    def __init__(self) -> None:
        self.rows: list[fleet_pb2.Replica] = []
        self.directives: asyncio.Queue[fleet_pb2.Directive] = asyncio.Queue()
        self.artifacts: dict[bytes, bytes] = {}

    async def Register(self, request_iterator: AsyncIterator[fleet_pb2.Heartbeat], context: Any) -> None:
        await context.write(fleet_pb2.Directive(lease_ms=5000))

        async def direct() -> None:
            while True:
                await context.write(await self.directives.get())

        directing = asyncio.create_task(direct())
        try:
            async for beat in request_iterator:
                self.rows.append(beat.replica)
        finally:
            directing.cancel()

    async def PutArtifact(
        self, request_iterator: AsyncIterator[fleet_pb2.ArtifactChunk], context: Any
    ) -> fleet_pb2.PutArtifactResponse:
        chunks = [chunk async for chunk in request_iterator]
        self.artifacts[chunks[0].digest] = b"".join(chunk.data for chunk in chunks)
        return fleet_pb2.PutArtifactResponse(digest=chunks[0].digest)


@contextlib.asynccontextmanager
async def registry(listen: str = "127.0.0.1:0") -> AsyncIterator[tuple[Registry, str]]:
    server, servicer = grpc.aio.server(options=channels.server_options()), Registry()
    fleet_pb2_grpc.add_FleetServicer_to_server(servicer, server)
    port = server.add_insecure_port(listen)
    await server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def last(servicer: Registry) -> fleet_pb2.Replica:
    return servicer.rows[-1] if servicer.rows else fleet_pb2.Replica()


async def test_a_replica_registers_and_sends_its_card_when_asked(tmp_path: Path) -> None:
    async with registry() as (servicer, target):
        flags = ("--controlplane", target, "--pool", "p", "--replica-id", "p-1", "--model", "scripted")
        async with worker(tmp_path, *flags) as running:
            await eventually(lambda: last(servicer).state == worker_pb2.REPLICA_STATE_READY)
            row = last(servicer)
            assert (row.ref.id, row.ref.endpoint, row.pool, row.model) == ("p-1", running.grpc, "p", "scripted")
            assert (row.http, row.pid, row.role) == (running.http, running.pid, "both")
            await servicer.directives.put(fleet_pb2.Directive(lease_ms=5000, send_card=True))
            await eventually(lambda: servicer.artifacts)
            ((digest, card),) = servicer.artifacts.items()
            assert digest == row.card_digest == hashlib.sha256(card).digest()
            assert json.loads(card)["end_token_ids"] == [257, 259]


async def test_a_drain_directive_lets_streams_end_and_the_process_leave(tmp_path: Path) -> None:
    async with registry() as (servicer, target), worker(tmp_path, "--controlplane", target) as running:
        async with Client(running.grpc) as client:
            handle = await client.submit(script("!rate(20)", "!repeat(15,x)"))
            await eventually(lambda: client.choice(handle).ids)
            drain = worker_pb2.DrainRequest(deadline_ms=10_000)
            await servicer.directives.put(fleet_pb2.Directive(lease_ms=5000, drain=drain))
            await eventually(lambda: last(servicer).state == worker_pb2.REPLICA_STATE_DRAINING)
            assert (await client.final(handle)).num_generated_tokens == 16
        await eventually(lambda: running.process.poll() is not None)
        assert running.process.returncode == 0
        assert last(servicer).state == worker_pb2.REPLICA_STATE_GONE


async def test_a_stop_directive_ends_the_process(tmp_path: Path) -> None:
    async with registry() as (servicer, target), worker(tmp_path, "--controlplane", target) as running:
        await servicer.directives.put(fleet_pb2.Directive(lease_ms=5000, stop=True))
        await eventually(lambda: running.process.poll() is not None)
        assert running.process.returncode == 0


async def test_without_a_registry_it_serves_and_registers_when_one_comes(tmp_path: Path) -> None:
    async with registry() as (_, target):
        pass
    async with worker(tmp_path, "--controlplane", target) as running, Client(running.grpc) as client:
        handle = await client.submit(script("a"))
        await client.final(handle)
        async with registry(target) as (first, _):
            await eventually(lambda: first.rows)
        await client.final(await client.submit(script("b")))
        async with registry(target) as (second, _):
            await eventually(lambda: second.rows)
            assert last(second).ref.id == last(first).ref.id
