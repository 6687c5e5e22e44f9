"""The stream of one gateway, against a reader that does not read and a process that stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.v1 import worker_pb2
from headrace_kit.errors import HeadraceError
from headrace_kit.health import Health
from headrace_worker.attach import Attach
from headrace_worker.config import WorkerConfig
from headrace_worker.dispatch import Dispatch
from headrace_worker.replica import Replica

HELLO = worker_pb2.Command(hello=worker_pb2.Hello(gateway_id="g"))


class Context:
    """A reader that takes `limit` frames and then no more."""

    def __init__(self, limit: int) -> None:
        self.limit, self.frames = limit, list[worker_pb2.Frame]()
        self.took = asyncio.Event()

    async def write(self, frame: worker_pb2.Frame) -> None:
        if len(self.frames) == self.limit:
            await asyncio.Event().wait()
        self.frames.append(frame)
        self.took.set()


def make(closing: asyncio.Event | None = None, read_s: float = 60) -> tuple[Attach, Dispatch]:
    config = WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), engine="scripted")
    replica = Replica(config, "127.0.0.1:1", Health())
    dispatch = Dispatch(replica, lambda command: None)
    return Attach(replica, dispatch, closing or asyncio.Event(), read_s), dispatch


async def commands(*first: worker_pb2.Command, hold: bool = True) -> AsyncIterator[worker_pb2.Command]:
    for command in first:
        yield command
    if hold:
        await asyncio.Event().wait()


async def test_a_gateway_that_does_not_read_loses_its_attach() -> None:
    attach, dispatch = make(read_s=0.05)
    with pytest.raises(HeadraceError) as raised:
        await attach.run(commands(HELLO), Context(0))
    assert raised.value.reason == "busy"
    assert dispatch._gateways == {}


async def test_frames_do_not_pile_up_behind_a_slow_reader() -> None:
    attach, dispatch = make()
    context = Context(1)
    running = asyncio.create_task(attach.run(commands(HELLO), context))
    await context.took.wait()
    (mailbox,) = dispatch._gateways
    for step in range(1, 1001):
        mailbox.note_step(step)
        mailbox.put_tokens(7, [step])
        await asyncio.sleep(0)
    context.limit = 1000
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(context.frames) == 1


@pytest.mark.parametrize(
    "first",
    [[], [worker_pb2.Command()], [worker_pb2.Command(hello=worker_pb2.Hello())]],
    ids=["nothing", "empty", "nameless"],
)
async def test_a_stream_begins_with_a_named_hello(first: list[Any]) -> None:
    attach, _ = make()
    with pytest.raises(HeadraceError) as raised:
        await attach.run(commands(*first, hold=False), Context(9))
    assert raised.value.reason == "invalid_argument"


async def test_a_second_hello_ends_the_stream() -> None:
    attach, _ = make()
    with pytest.raises(HeadraceError):
        await attach.run(commands(HELLO, HELLO), Context(9))


async def test_a_stopping_process_ends_the_stream_after_its_last_frame() -> None:
    closing = asyncio.Event()
    attach, dispatch = make(closing)
    context = Context(9)
    running = asyncio.create_task(attach.run(commands(HELLO), context))
    await context.took.wait()
    (mailbox,) = dispatch._gateways
    closing.set()
    mailbox.put_final(worker_pb2.Final(handle=3))
    await asyncio.wait_for(running, 5)
    assert [final.handle for frame in context.frames for final in frame.finals] == [3]


async def test_a_refusal_is_a_message_and_never_an_error() -> None:
    attach, _ = make()
    context = Context(9)
    submit = worker_pb2.Command(submit=worker_pb2.Submit(handle=5))
    running = asyncio.create_task(attach.run(commands(HELLO, submit), context))
    for _ in range(2):
        await context.took.wait()
        context.took.clear()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    (refused,) = [refused for frame in context.frames for refused in frame.refused]
    assert (refused.handle, refused.reason) == (5, "busy")
