"""One Attach against a real gRPC server: order, silence, and the end of everything on it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from headrace.v1 import prefix_chain, worker_pb2_grpc
from headrace.v1 import worker_pb2 as pb
from headrace_gateway.upstreams.worker_link import WorkerLink
from headrace_kit.channels import connect

Behaviour = Callable[[AsyncIterator[pb.Command]], AsyncIterator[pb.Frame]]


class FakeEngine(worker_pb2_grpc.EngineServicer):
    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def Attach(self, commands: AsyncIterator[pb.Command], context: Any) -> AsyncIterator[pb.Frame]:
        async for frame in self._behaviour(commands):
            yield frame


class Heard:
    """Remembers everything in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_accepted(self, accepted: pb.Accepted) -> None:
        self.calls.append(("accepted", accepted.num_cached_tokens))

    def on_refused(self, refused: pb.Refused) -> None:
        self.calls.append(("refused", refused.reason))

    def on_tokens(self, choice: int, token_ids: list[int], logprobs: pb.SequenceLogprobs | None) -> None:
        self.calls.append(("tokens", choice, token_ids))

    def on_final(self, final: pb.Final) -> None:
        self.calls.append(("final", final.choice))

    def on_lost(self, reason: str) -> None:
        self.calls.append(("lost", reason))


@asynccontextmanager
async def linked(behaviour: Behaviour, frame_timeout_s: float = 5.0) -> AsyncIterator[tuple[WorkerLink, Any]]:
    server = grpc.aio.server()
    worker_pb2_grpc.add_EngineServicer_to_server(FakeEngine(behaviour), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = connect(f"127.0.0.1:{port}", token="t")
    link = WorkerLink(channel, pb.Hello(gateway_id="g"), lambda _link, _orphans: None)
    task = asyncio.create_task(link.run(frame_timeout_s))
    try:
        yield link, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await channel.close()
        await server.stop(None)


def frame(**fields: Any) -> pb.Frame:
    return pb.Frame(epoch="e", **fields)


async def test_a_frame_is_heard_in_the_order_of_the_contract() -> None:
    async def behaviour(commands: AsyncIterator[pb.Command]) -> AsyncIterator[pb.Frame]:
        hello, submit = await anext(commands), (await anext(commands)).submit
        assert hello.hello.gateway_id == "g"
        yield frame(
            accepted=[pb.Accepted(handle=submit.handle, num_cached_tokens=16)],
            handles=[submit.handle + 1, submit.handle],
            num_tokens=[2, 1],
            token_ids=prefix_chain.pack_ids([5, 6, 7]),
            finals=[pb.Final(handle=submit.handle, choice=0)],
        )
        await asyncio.Event().wait()

    heard = Heard()
    async with linked(behaviour) as (link, _):
        link.submit(pb.Submit(response_id="r", attempt=1, n=2), heard)
        async with asyncio.timeout(5.0):
            while len(heard.calls) < 4:  # noqa: ASYNC110 - the listener has no event
                await asyncio.sleep(0.001)
        assert link.num_attempts == 1  # choice 1 has no final yet
    assert heard.calls[:4] == [("accepted", 16), ("tokens", 1, [5, 6]), ("tokens", 0, [7]), ("final", 0)]


async def test_a_silent_worker_is_lost() -> None:
    async def behaviour(commands: AsyncIterator[pb.Command]) -> AsyncIterator[pb.Frame]:
        yield frame()
        await asyncio.Event().wait()

    heard = Heard()
    async with linked(behaviour, frame_timeout_s=0.2) as (link, task):
        link.submit(pb.Submit(response_id="r", attempt=1, n=3), heard)
        await asyncio.wait_for(task, 5.0)
    assert heard.calls == [("lost", "worker_lost")] and link.closed


async def test_a_worker_that_ends_the_stream_is_lost_and_the_link_stays_closed() -> None:
    async def behaviour(commands: AsyncIterator[pb.Command]) -> AsyncIterator[pb.Frame]:
        submit = [await anext(commands) for _ in range(2)][1].submit
        yield frame(refused=[pb.Refused(handle=submit.handle, reason="busy")])

    first, second = Heard(), Heard()
    async with linked(behaviour) as (link, task):
        link.submit(pb.Submit(response_id="r1", attempt=1, n=1), first)
        await asyncio.wait_for(task, 5.0)
        link.submit(pb.Submit(response_id="r2", attempt=1, n=1), second)
        await asyncio.sleep(0)
    assert first.calls == [("refused", "busy")]
    assert second.calls == [("lost", "worker_lost")]
