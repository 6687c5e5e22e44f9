"""A hand-off that breaks after every message of it: between two real replicas stands a proxy that spoils the stream.

Neither side keeps a page, D's request ends once and in words, and both books balance.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import response_pb2, worker_pb2, worker_pb2_grpc

from .test_hand_off import balanced, long_script
from .worker_process import Client, Worker, eventually, worker

Spoil = Callable[[int, worker_pb2.PageGroup], worker_pb2.PageGroup | None]
# Of a prompt in one chunk: opening, group, last.
NUM_MESSAGES = 3


class Proxy(worker_pb2_grpc.KvTransferServicer):
    """Forwards to the real prefill replica; `spoil` sees message after message, and None breaks the stream there."""

    def __init__(self, channel: Any) -> None:
        self._stub: Any = worker_pb2_grpc.KvTransferStub(channel)
        self.spoil: Spoil = lambda number, group: group
        self.drops: frozenset[str] = frozenset()
        self.hear: Callable[[str], None] = lambda kind: None
        self.commands: list[str] = []

    async def Pull(
        self, request_iterator: AsyncIterator[worker_pb2.PullCommand], context: Any
    ) -> AsyncIterator[worker_pb2.PageGroup]:
        call = self._stub.Pull()

        async def forward() -> None:
            async for command in request_iterator:
                kind = command.WhichOneof("command")
                self.commands.append(kind)
                self.hear(kind)
                if kind not in self.drops:
                    await call.write(command)

        forwarding = asyncio.create_task(forward())
        try:
            number = 0
            async for group in call:
                # Empty groups are signs of life, and come as they come.
                is_alive = not (group.num_pages or group.segment or group.source_pages or group.last or group.error)
                spoilt = group if is_alive else self.spoil(number, group)
                number += not is_alive
                if spoilt is None:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
                    return
                yield spoilt
        finally:
            call.cancel()
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)


class Stage:
    """Both replicas, their clients and the proxy."""

    def __init__(self, prefill: Worker, look: Client, decode: Client, proxy: Proxy, endpoint: str) -> None:
        self.prefill, self.look, self.decode, self.proxy = prefill, look, decode, proxy
        self._ref = response_pb2.ReplicaRef(id="p", epoch=look.epoch, endpoint=endpoint)

    async def submit(self, seed: int) -> int:
        return await self.decode.submit(long_script(seed, "a"), prefill=self._ref)

    async def final(self, seed: int) -> worker_pb2.Final:
        handle = await self.submit(seed)
        final = await self.decode.final(handle)
        await self.decode.ack(self.decode.name(handle))
        return final

    async def balanced(self) -> None:
        await balanced(self.decode)
        await balanced(self.look)


@contextlib.asynccontextmanager
async def stage(directory: Path, *decode_flags: str) -> AsyncIterator[Stage]:
    small = ("--num-pages", "64")
    async with (
        worker(directory / "p", "--role", "prefill", *small) as prefill,
        worker(directory / "d", "--role", "decode", *small, *decode_flags) as decode,
        Client(prefill.grpc, "look") as look,
        Client(decode.grpc) as client,
    ):
        server = grpc.aio.server()
        proxy = Proxy(look.channel)
        worker_pb2_grpc.add_KvTransferServicer_to_server(proxy, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield Stage(prefill, look, client, proxy, f"127.0.0.1:{port}")
        finally:
            await server.stop(0)


@pytest.mark.parametrize("transport", ["grpc", pytest.param("shared_memory", marks=pytest.mark.slow)])
async def test_a_stream_that_breaks_after_any_message_frees_both_sides(tmp_path: Path, transport: str) -> None:
    # Nobody acknowledges: a reader by itself keeps the pages for the longest operation after the lease.
    async with stage(tmp_path, "--kv-transport", transport, "--kv-lease-s", "0.5") as there:
        for cut in range(NUM_MESSAGES):
            there.proxy.spoil = lambda number, group, cut=cut: None if number == cut else group  # type: ignore[misc]
            final = await there.final(cut)
            # With the last group a payload is there; a reader by itself may find the lease closed while it reads.
            if final.kind == worker_pb2.FINAL_KIND_STOP:
                assert cut == NUM_MESSAGES - 1
            else:
                assert final.reason in ("prefill_lost", "kv_expired")
                assert (final.retryable, final.num_generated_tokens) == (True, 0)
        await there.balanced()


async def test_a_flipped_byte_is_found_and_a_foreign_group_refused(tmp_path: Path) -> None:
    def flip(_: int, group: worker_pb2.PageGroup) -> worker_pb2.PageGroup:
        if group.payload:
            group.payload = bytes([group.payload[0] ^ 1]) + group.payload[1:]
        return group

    def shift(_: int, group: worker_pb2.PageGroup) -> worker_pb2.PageGroup:
        group.first_page += bool(group.num_pages)
        return group

    def older(_: int, group: worker_pb2.PageGroup) -> worker_pb2.PageGroup:
        group.generation += bool(group.num_pages)
        return group

    def short(_: int, group: worker_pb2.PageGroup) -> worker_pb2.PageGroup:
        group.payload = group.payload[:-8]
        return group

    async with stage(tmp_path) as there:
        for seed, spoil in enumerate((flip, shift, older, short)):
            there.proxy.spoil = spoil
            final = await there.final(seed)
            assert (final.reason, final.num_generated_tokens) == ("prefill_lost", 0), spoil
        await there.balanced()


@pytest.mark.parametrize("transport", ["grpc", pytest.param("shared_memory", marks=pytest.mark.slow)])
async def test_a_pull_after_the_leases_end_is_an_error_and_never_an_answer(tmp_path: Path, transport: str) -> None:
    """B117, with a lease of half a second that no renewal reaches, and pages that are ready after it."""
    async with stage(tmp_path, "--kv-lease-s", "0.5", "--kv-transport", transport) as there:
        there.proxy.drops = frozenset({"renew"})
        os.kill(there.prefill.engine_pid(), signal.SIGSTOP)
        handle = await there.submit(1)
        await eventually(lambda: "renew" in there.proxy.commands)
        await asyncio.sleep(0.8)
        os.kill(there.prefill.engine_pid(), signal.SIGCONT)
        final = await there.decode.final(handle)
        assert (final.reason, final.retryable, final.num_generated_tokens) == ("kv_expired", True, 0)
        await there.decode.ack(there.decode.name(handle))
        await there.balanced()


@pytest.mark.slow
async def test_an_ack_that_gets_lost_costs_only_time(tmp_path: Path) -> None:
    async with stage(tmp_path, "--kv-lease-s", "0.5") as there:
        there.proxy.drops = frozenset({"ack"})
        assert (await there.final(1)).kind == worker_pb2.FINAL_KIND_STOP
        await there.balanced()
