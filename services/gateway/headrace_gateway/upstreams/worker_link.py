"""The one multiplexed stream that this gateway keeps to one worker.

Turns frames into calls on whoever submitted, by handle. Knows no text and no client. A link that breaks, or that is
silent for `frame_timeout_s`, loses every attempt on it and is never used again; the pool opens another.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from headrace.v1 import worker_pb2 as pb
from headrace.v1 import worker_pb2_grpc
from headrace.v1.prefix_chain import unpack_ids

log = logging.getLogger(__name__)


class AttemptListener(Protocol):
    """Whoever submitted one attempt; calls come in the order of the frames and must not block."""

    def on_accepted(self, accepted: pb.Accepted) -> None: ...
    def on_refused(self, refused: pb.Refused) -> None: ...
    def on_tokens(self, choice: int, token_ids: list[int], logprobs: "pb.SequenceLogprobs | None") -> None: ...
    def on_final(self, final: pb.Final) -> None: ...
    def on_lost(self, reason: str) -> None: ...


@dataclass(eq=False)
class _Attempt:
    """One submitted attempt: its first handle, and the choices whose final has not come."""

    handle: int
    ref: tuple[str, int]
    listener: AttemptListener
    open_choices: set[int]


class WorkerLink:
    """One Attach. `closed` is set once, when nothing more can come."""

    def __init__(
        self, channel: grpc.aio.Channel, hello: pb.Hello, on_orphans: Callable[["WorkerLink", list[pb.Orphan]], None]
    ) -> None:
        self._stub: Any = worker_pb2_grpc.EngineStub(channel)
        self._hello, self._on_orphans = hello, on_orphans
        self._commands: asyncio.Queue[pb.Command] = asyncio.Queue()
        self._unsent_ack: pb.Command | None = None  # in the queue; takes more for as long as it is there
        self._by_handle: dict[int, _Attempt] = {}
        self._next_handle = 1
        self.closed = False

    @property
    def num_attempts(self) -> int:
        """Attempts with a final still to come."""
        return len({attempt.handle for attempt in self._by_handle.values()})

    def submit(self, submit: pb.Submit, listener: AttemptListener) -> None:
        """Sends one attempt; its handle is given here. A closed link loses it at once."""
        if self.closed:
            asyncio.get_running_loop().call_soon(listener.on_lost, "worker_lost")
            return
        submit.handle = self._next_handle
        self._next_handle += submit.n
        ref = (submit.response_id, submit.attempt)
        attempt = _Attempt(submit.handle, ref, listener, set(range(submit.n)))
        for choice in range(submit.n):
            self._by_handle[submit.handle + choice] = attempt
        self._commands.put_nowait(pb.Command(submit=submit))

    def cancel(self, cancel: pb.Cancel) -> None:
        if not self.closed:
            self._commands.put_nowait(pb.Command(cancel=cancel))

    def acknowledge(self, response_id: str, attempt: int, *, traced: bool, num_settled: int | None = None) -> None:
        """The finals of an attempt are in the books, or only so many of its tokens; `traced`: its spans are wanted."""
        if self.closed:
            return
        if self._unsent_ack is None:
            self._unsent_ack = pb.Command()
            self._commands.put_nowait(self._unsent_ack)
        self._unsent_ack.ack.attempts.add(
            response_id=response_id, attempt=attempt, traced=traced, num_settled_tokens=num_settled
        )

    async def run(self, frame_timeout_s: float) -> None:
        """Reads until the stream ends, breaks or falls silent; then every attempt on it is lost."""
        call = self._stub.Attach(self._outgoing())
        cause = "the worker ended the stream"
        try:
            frames = aiter(call)
            while True:
                async with asyncio.timeout(frame_timeout_s):
                    frame = await anext(frames)
                self._take(frame)
        except StopAsyncIteration:
            pass
        except TimeoutError:
            cause = f"no frame for {frame_timeout_s:g} s"
        except grpc.aio.AioRpcError as error:
            cause = f"{error.code().name}: {error.details()}"
        finally:
            call.cancel()
            self._lose_all(cause)

    async def _outgoing(self) -> AsyncIterator[pb.Command]:
        yield pb.Command(hello=self._hello)
        while True:
            command = await self._commands.get()
            if command is self._unsent_ack:
                self._unsent_ack = None
            yield command

    def _take(self, frame: pb.Frame) -> None:
        for accepted in frame.accepted:
            if (attempt := self._by_handle.get(accepted.handle)) is not None:
                attempt.listener.on_accepted(accepted)
        for refused in frame.refused:
            if (attempt := self._by_handle.get(refused.handle)) is not None:
                self._forget(attempt, set(attempt.open_choices))
                attempt.listener.on_refused(refused)
        if frame.handles:
            self._take_tokens(frame)
        for final in frame.finals:
            if (attempt := self._by_handle.get(final.handle)) is not None:
                self._forget(attempt, {final.choice})
                attempt.listener.on_final(final)
        if frame.orphans:
            self._on_orphans(self, list(frame.orphans))

    def _take_tokens(self, frame: pb.Frame) -> None:
        ids = unpack_ids(frame.token_ids)
        logprobs = {entry.handle: entry for entry in frame.logprobs}
        start = 0
        for handle, num_tokens in zip(frame.handles, frame.num_tokens, strict=True):
            attempt = self._by_handle.get(handle)
            if attempt is not None:
                new = ids[start : start + num_tokens]
                attempt.listener.on_tokens(handle - attempt.handle, new, logprobs.get(handle))
            start += num_tokens

    def _forget(self, attempt: _Attempt, choices: set[int]) -> None:
        attempt.open_choices -= choices
        for choice in choices:
            self._by_handle.pop(attempt.handle + choice, None)

    def _lose_all(self, cause: str) -> None:
        self.closed = True
        attempts = {attempt.handle: attempt for attempt in self._by_handle.values()}
        self._by_handle.clear()
        if attempts:
            log.warning("worker_lost", extra={"cause": cause, "num_attempts": len(attempts)})
        for attempt in attempts.values():
            attempt.listener.on_lost("worker_lost")
