"""Either side is killed at every step of a hand-off: the other ends it in words, serves on, and its books balance."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from headrace.v1 import response_pb2, worker_pb2, worker_pb2_grpc

from .test_hand_off import balanced, long_script
from .test_hand_off_faults import Proxy
from .worker_process import Client, Worker, eventually, script, worker

# What the proxy sees: D's start, then the opening, the group, the last word, and D's ack.
STEPS = ("start", "opening", "group", "last", "ack")
SMALL = ("--num-pages", "64", "--kv-lease-s", "0.5")


class Killer(Proxy):
    """Kills a process when the hand-off has come to a step, before anybody hears of it."""

    def __init__(self, look: Client, victim: Worker, step: str) -> None:
        super().__init__(look.channel)
        self._victim, self._step = victim, step
        self.spoil, self.hear = self._see, self._at

    def _see(self, number: int, group: worker_pb2.PageGroup) -> worker_pb2.PageGroup:
        self._at("last" if group.last else "group" if group.num_pages else "opening")
        return group

    def _at(self, step: str) -> None:
        if step == self._step:
            self._victim.process.kill()
            self._victim.process.wait()


@contextlib.asynccontextmanager
async def serving(proxy: Proxy) -> AsyncIterator[str]:
    server = grpc.aio.server()
    worker_pb2_grpc.add_KvTransferServicer_to_server(proxy, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def serves_on(client: Client) -> None:
    handle = await client.submit(script("a", "b"))
    assert (await client.final(handle)).kind == worker_pb2.FINAL_KIND_STOP
    await client.ack(client.name(handle))


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
async def test_a_killed_prefill_replica_costs_its_hand_off_and_nothing_else(tmp_path: Path, transport: str) -> None:
    flags = ("--role", "decode", "--kv-transport", transport, *SMALL)
    async with worker(tmp_path / "d", *flags) as decode, Client(decode.grpc) as client:
        for number, step in enumerate(STEPS):
            async with (
                worker(tmp_path / f"p{number}", "--role", "prefill", *SMALL) as prefill,
                Client(prefill.grpc, "look") as look,
                serving(Killer(look, prefill, step)) as endpoint,
            ):
                ref = response_pb2.ReplicaRef(id="p", epoch=look.epoch, endpoint=endpoint)
                handle = await client.submit(long_script(number, "a"), prefill=ref)
                final = await client.final(handle)
                if final.kind == worker_pb2.FINAL_KIND_STOP:
                    assert step in ("group", "last", "ack"), step
                    assert client.choice(handle).ids[-2:] == [97, 257]
                else:
                    assert (final.reason, final.retryable) == ("prefill_lost", True), step
                    assert final.num_generated_tokens == 0
                await client.ack(client.name(handle))
                await eventually(lambda prefill=prefill: prefill.process.poll() is not None)  # type: ignore[misc]
                await serves_on(client)
                assert decode.readyz() == 200
        await balanced(client)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
async def test_a_killed_decode_replica_leaves_no_page_in_quarantine(tmp_path: Path, transport: str) -> None:
    async with worker(tmp_path / "p", "--role", "prefill", *SMALL) as prefill, Client(prefill.grpc, "look") as look:
        for number, step in enumerate(STEPS):
            flags = ("--role", "decode", "--kv-transport", transport, *SMALL)
            async with worker(tmp_path / f"d{number}", *flags) as decode:
                client = await Client(decode.grpc).__aenter__()
                async with serving(Killer(look, decode, step)) as endpoint:
                    ref = response_pb2.ReplicaRef(id="p", epoch=look.epoch, endpoint=endpoint)
                    await client.submit(long_script(number, "a"), prefill=ref)
                    await eventually(lambda decode=decode: decode.process.poll() is not None)  # type: ignore[misc]
                await client.__aexit__()
            assert prefill.readyz() == 200
        await balanced(look)
