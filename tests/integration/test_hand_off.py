"""A prefill and a decode replica as real processes: scripted ones, whose KV tells whose tokens it was computed from."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, response_pb2, worker_pb2, worker_pb2_grpc
from headrace_worker.transfer.nixl_agent import why_not

from .worker_process import Client, Worker, eventually, pack, script, worker

TRANSPORTS = ["grpc", "shared_memory", pytest.param("nixl", marks=pytest.mark.slow)]


@contextlib.asynccontextmanager
async def pair(directory: Path, *decode_flags: str) -> AsyncIterator[tuple[Worker, Client, Worker, Client]]:
    """Prefill and decode replica, each with a client that knows its epoch."""
    small = ("--num-pages", "64")
    async with (
        worker(directory / "p", "--role", "prefill", *small) as prefill,
        worker(directory / "d", "--role", "decode", *small, *decode_flags) as decode,
        Client(prefill.grpc, "look") as look,
        Client(decode.grpc) as client,
    ):
        yield prefill, look, decode, client


def ref(prefill: Worker, look: Client) -> response_pb2.ReplicaRef:
    return response_pb2.ReplicaRef(id="p", epoch=look.epoch, endpoint=prefill.grpc)


def long_script(seed: int, *elements: object) -> bytes:
    """A script of more than two pages that no other seed begins with."""
    return script(f"{seed}-{'x' * 60}", *elements)


async def balanced(client: Client) -> list[fleet_pb2.AuditRow]:
    """The worker's books once nothing runs and no page is in transfer; all rows must balance."""
    stub = fleet_pb2_grpc.BookkeepingStub(client.channel)
    load = await client.idle()
    for _ in range(1500):
        if not load.num_quarantined_pages:
            break
        await asyncio.sleep(0.01)
        load = await client.load()
    assert load.num_quarantined_pages == 0
    books = await stub.GetBooks(fleet_pb2.GetBooksRequest(), timeout=5)
    assert all(row.balanced for row in books.rows), books.rows
    return list(books.rows)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_prompts_are_handed_off_and_draw_what_one_replica_draws(tmp_path: Path, transport: str) -> None:
    if transport == "nixl" and (reason := why_not()):
        pytest.skip(reason)
    async with pair(tmp_path, "--kv-transport", transport) as (prefill, look, _, client):
        handles = [await client.submit(long_script(n, "a", "b"), prefill=ref(prefill, look)) for n in range(5)]
        for handle in handles:
            final = await client.final(handle)
            assert (final.kind, final.num_generated_tokens) == (worker_pb2.FINAL_KIND_STOP, 4), final
            assert client.choice(handle).ids[-3:] == [97, 98, 257]
            assert (final.prefill.id, final.prefill.epoch) == ("p", look.epoch)
            assert final.prefill_device_us > 0
        await client.ack(*(client.name(handle) for handle in handles))
        rows = {row.equation: row.left for row in await balanced(client)}
        assert rows["hand-offs to here = received + failed + under way"] == 5
        rows = {row.equation: row.left for row in await balanced(look)}
        assert rows["hand-offs from here = acknowledged + aborted + under way"] == 5


@pytest.mark.slow
async def test_a_second_prompt_with_the_same_beginning_pulls_only_the_rest(tmp_path: Path) -> None:
    async with pair(tmp_path) as (prefill, look, _, client):
        await client.final(await client.submit(long_script(1, "a"), prefill=ref(prefill, look)))
        handle = await client.submit(long_script(1, "a", "y" * 80), prefill=ref(prefill, look))
        await client.final(handle)
        assert client.accepted[handle].num_cached_tokens >= 64
        await balanced(client)


@pytest.mark.slow
async def test_short_prompts_stay_here(tmp_path: Path) -> None:
    async with pair(tmp_path) as (prefill, look, _, client):
        final = await client.final(await client.submit(script("a"), prefill=ref(prefill, look)))
        assert not final.HasField("prefill")
        assert not any("hand-offs" in row.equation for row in await balanced(client))


async def test_a_dead_prefill_replica_fails_its_requests_at_once_and_nothing_else(tmp_path: Path) -> None:
    async with pair(tmp_path) as (prefill, look, decode, client):
        running = [await client.submit(script("!rate(20)", f"!repeat(60,{n})")) for n in range(3)]
        await eventually(lambda: all(client.choice(handle).ids for handle in running))
        target = ref(prefill, look)
        os.kill(prefill.engine_pid(), signal.SIGSTOP)
        waiting = [await client.submit(long_script(n, "a"), prefill=target) for n in range(5)]
        await eventually(lambda: all(handle in client.accepted for handle in waiting))
        os.kill(prefill.engine_pid(), signal.SIGCONT)
        prefill.process.kill()
        for handle in waiting:
            final = await client.final(handle, limit_s=2.0)
            if final.kind != worker_pb2.FINAL_KIND_STOP:
                assert (final.reason, final.retryable, final.num_generated_tokens) == ("prefill_lost", True, 0)
        assert decode.readyz() == 200
        late = await client.submit(long_script(9, "a"), prefill=target)
        assert (await client.final(late)).reason == "prefill_lost"
        for handle in running:
            assert (await client.final(handle)).kind == worker_pb2.FINAL_KIND_LENGTH or len(client.choice(handle).ids)
        await client.ack(*(client.name(handle) for handle in [*waiting, *running, late]))
        await balanced(client)


async def test_a_cancel_while_pages_are_awaited_frees_both_sides(tmp_path: Path) -> None:
    async with pair(tmp_path) as (prefill, look, _, client):
        os.kill(prefill.engine_pid(), signal.SIGSTOP)
        handle = await client.submit(long_script(1, "a"), prefill=ref(prefill, look))
        await eventually(lambda: handle in client.accepted)
        await client.cancel(client.name(handle))
        assert (await client.final(handle)).kind == worker_pb2.FINAL_KIND_CANCELLED
        os.kill(prefill.engine_pid(), signal.SIGCONT)
        await client.ack(client.name(handle))
        await balanced(client)
        await balanced(look)


@pytest.mark.slow
async def test_a_dead_decode_replica_leaves_nothing_behind_at_the_prefill_replica(tmp_path: Path) -> None:
    async with pair(tmp_path) as (prefill, look, decode, client):
        os.kill(prefill.engine_pid(), signal.SIGSTOP)
        for n in range(3):
            await client.submit(long_script(n, "a"), prefill=ref(prefill, look))
        await eventually(lambda: len(client.accepted) == 3)
        decode.process.kill()
        os.kill(prefill.engine_pid(), signal.SIGCONT)
        await balanced(look)


def start_of(prompt: bytes, look: Client, described: worker_pb2.Description, **fields: Any) -> worker_pb2.PullCommand:
    layout = worker_pb2.KvLayout(num_layers=1, num_kv_heads=1, head_dim=1, dtype="none", page_tokens=16, tp=1)
    facts = {"replica_epoch": look.epoch, "prompt_ids": prompt, "kv_context": described.kv_context}
    whole: dict[str, Any] = {"layout": layout, "lease_ms": 1000, **facts} | fields
    start = worker_pb2.PullStart(**whole)
    return worker_pb2.PullCommand(transfer_id="t1", start=start)


async def pull(channel: Any, command: worker_pb2.PullCommand) -> tuple[Any, list[worker_pb2.PageGroup]]:
    """The call, and its groups up to the last."""
    call = worker_pb2_grpc.KvTransferStub(channel).Pull()
    await call.write(command)
    groups = []
    async for group in call:
        groups.append(group)
        if group.last:
            break
    return call, groups


MISFITS: list[dict[str, Any]] = [
    {"replica_epoch": "other"},
    {"kv_context": b"other"},
    {"from_token": 5},
    {"prompt_ids": b"abc"},
    {"transport": "pigeon"},
    {"layout": worker_pb2.KvLayout(num_layers=2, num_kv_heads=1, head_dim=1, dtype="none", page_tokens=16)},
]


async def test_a_pull_that_does_not_fit_is_refused_in_words(prefill_alone: Any) -> None:
    look, described = prefill_alone
    for fields in MISFITS:
        _, groups = await pull(look.channel, start_of(pack([1] * 40), look, described, **fields))
        assert [group.error for group in groups] == ["prefill_lost"], fields


@pytest.fixture
async def prefill_alone(tmp_path: Path) -> AsyncIterator[tuple[Client, worker_pb2.Description]]:
    async with worker(tmp_path, "--role", "prefill", "--num-pages", "16") as prefill, Client(prefill.grpc) as look:
        yield look, await look.stub.Describe(worker_pb2.DescribeRequest(), timeout=5)


async def test_pages_stay_in_quarantine_until_the_lease_ends_and_then_serve_others(prefill_alone: Any) -> None:
    """Nobody acknowledges a lease of a second."""
    look, described = prefill_alone
    _, groups = await pull(look.channel, start_of(pack([7] * 100), look, described))
    assert sum(group.num_pages for group in groups) == 7
    load = await look.load()
    assert load.num_quarantined_pages == 7
    await asyncio.sleep(1.0)
    await balanced(look)


@pytest.mark.slow
async def test_a_renewed_lease_lasts_and_an_ack_frees_at_once(prefill_alone: Any) -> None:
    look, described = prefill_alone
    call, groups = await pull(look.channel, start_of(pack([7] * 100), look, described))
    for _ in range(4):
        await asyncio.sleep(0.4)
        await call.write(worker_pb2.PullCommand(transfer_id="t1", renew=worker_pb2.PullRenew(lease_ms=1000)))
    assert (await look.load()).num_quarantined_pages == 7
    await call.write(worker_pb2.PullCommand(transfer_id="t1", ack=worker_pb2.PullAck(generation=groups[0].generation)))
    await balanced(look)
