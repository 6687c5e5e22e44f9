"""Who is calling is asked once, however many call at once, and every caller gets the answer or the refusal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from headrace.v1 import policy_pb2 as pb
from headrace.v1 import policy_pb2_grpc
from headrace_gateway.upstreams.policy import PolicyClient
from headrace_kit.channels import connect
from headrace_kit.errors import HeadraceError


class Doorman(policy_pb2_grpc.PolicyServicer):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.open = asyncio.Event()

    async def Authenticate(self, request: pb.AuthenticateRequest, context: Any) -> pb.Identity:
        self.asked.append((request.credential, request.model))
        await self.open.wait()
        if request.credential == "stolen":
            await context.abort_with_status(HeadraceError("unauthenticated", "no such key").to_status())
        return pb.Identity(tenant=request.credential, cache_s=60.0)


@asynccontextmanager
async def door() -> AsyncIterator[tuple[Doorman, PolicyClient]]:
    doorman, server = Doorman(), grpc.aio.server()
    policy_pb2_grpc.add_PolicyServicer_to_server(doorman, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with connect(f"127.0.0.1:{port}", token="t") as channel:
        yield doorman, PolicyClient(channel)
    await server.stop(None)


async def callers(client: PolicyClient, credential: str, num: int) -> "list[asyncio.Task[pb.Identity]]":
    tasks = [asyncio.create_task(client.authenticate(credential, "m")) for _ in range(num)]
    await asyncio.sleep(0)
    return tasks


async def test_those_who_come_at_once_share_one_question() -> None:
    async with door() as (doorman, client):
        tasks = await callers(client, "a", 20) + await callers(client, "b", 20)
        doorman.open.set()
        tenants = [(await task).tenant for task in tasks]
        assert tenants == ["a"] * 20 + ["b"] * 20
        assert sorted(doorman.asked) == [("a", "m"), ("b", "m")]


async def test_a_refusal_is_everyones_and_is_not_kept() -> None:
    async with door() as (doorman, client):
        doorman.open.set()
        for round_ in (1, 2):
            tasks = await callers(client, "stolen", 5)
            told = await asyncio.gather(*tasks, return_exceptions=True)
            assert [getattr(error, "reason", "") for error in told] == ["unauthenticated"] * 5
            assert len(doorman.asked) == round_


async def test_a_caller_that_leaves_takes_nobody_along() -> None:
    async with door() as (doorman, client):
        first, second = await callers(client, "a", 2)
        first.cancel()
        doorman.open.set()
        assert (await second).tenant == "a"
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_who_sends_no_key_is_told_how_and_policy_is_not_asked() -> None:
    async with door() as (doorman, client):
        with pytest.raises(HeadraceError, match="the key in the header Authorization") as refused:
            await client.authenticate("")
        assert (refused.value.reason, doorman.asked) == ("unauthenticated", [])
