"""One Attach: commands in, at most one frame per engine step out. Ends when its gateway goes, or does not read.

Knows no engine: what a command means is the dispatch's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from headrace.v1 import worker_pb2
from headrace_kit.errors import HeadraceError
from headrace_kit.lifecycle import cancel_and_wait
from headrace_worker.dispatch import Dispatch
from headrace_worker.mailbox import Mailbox
from headrace_worker.replica import Replica

log = logging.getLogger(__name__)
HELLO_S = 10.0
FRAME_S = 0.9
READ_S = 10.0


class Attach:
    """The stream of one gateway. `closing` ends it after the last frame (this process is stopping)."""

    def __init__(self, replica: Replica, dispatch: Dispatch, closing: asyncio.Event, read_s: float = READ_S) -> None:
        self._replica, self._dispatch, self._closing, self._read_s = replica, dispatch, closing, read_s

    async def run(self, commands: AsyncIterator[worker_pb2.Command], context: Any) -> None:
        """Raises HeadraceError for a stream that does not begin with Hello."""
        hello = await self._hello(commands)
        mailbox = self._dispatch.open(hello.gateway_id)
        log.info("gateway_attached", extra={"gateway_id": hello.gateway_id, "gateway_epoch": hello.gateway_epoch})
        reading = asyncio.create_task(self._read(mailbox, commands))
        writing = asyncio.create_task(self._write(mailbox, context))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(reading, writing)
            self._dispatch.close(mailbox)
            log.info("gateway_detached", extra={"gateway_id": hello.gateway_id})
        for task in (reading, writing):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _hello(self, commands: AsyncIterator[worker_pb2.Command]) -> worker_pb2.Hello:
        try:
            async with asyncio.timeout(HELLO_S):
                first = await anext(commands, None)
        except TimeoutError:
            first = None
        if first is None or first.WhichOneof("command") != "hello":
            raise HeadraceError("invalid_argument", "the first command of an Attach is Hello", field="hello")
        if not 0 < len(first.hello.gateway_id) <= 256:
            raise HeadraceError("invalid_argument", "must have 1 to 256 characters", field="hello.gateway_id")
        return first.hello

    async def _read(self, mailbox: Mailbox, commands: AsyncIterator[worker_pb2.Command]) -> None:
        async for command in commands:
            kind = command.WhichOneof("command")
            if kind == "submit":
                self._dispatch.submit(mailbox, command.submit)
            elif kind == "cancel":
                self._dispatch.cancel(mailbox, command.cancel)
            elif kind == "ack":
                self._dispatch.ack(mailbox, command.ack)
            else:
                raise HeadraceError("invalid_argument", "Hello comes once, and a command is never empty")

    async def _write(self, mailbox: Mailbox, context: Any) -> None:
        """A frame whenever there is something to say, and an empty one before a second is over."""
        while True:
            frame = mailbox.take(self._replica.epoch)
            try:
                async with asyncio.timeout(self._read_s):
                    await context.write(frame)
            except TimeoutError:
                raise HeadraceError("busy", f"the gateway has read nothing for {self._read_s:g} s") from None
            if self._closing.is_set() and mailbox.empty:
                return
            await mailbox.wait(FRAME_S)
            # Lets the rest of the step's messages in, so that a step is one frame.
            await asyncio.sleep(0)
