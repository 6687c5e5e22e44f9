"""What one Attach has not been sent yet, merged per sequence: a slow reader costs memory for tokens, not for frames.

Knows the wire's messages, not who writes them or to whom they go.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from array import array
from collections.abc import Iterable

from headrace.v1 import response_pb2, worker_pb2


class Mailbox:
    """Filled by engine steps, emptied by one writer. A sequence's tokens are bounded by its declared output."""

    def __init__(self) -> None:
        self._filled = asyncio.Event()
        self._seq = 0
        self._reset()

    def _reset(self) -> None:
        self._first_step = self._last_step = 0
        self._accepted: list[worker_pb2.Accepted] = []
        self._refused: list[worker_pb2.Refused] = []
        self._progress: dict[int, int] = {}
        self._tokens: dict[int, array[int]] = {}
        self._logprobs: dict[int, list[response_pb2.TokenLogprob]] = {}
        self._finals: list[worker_pb2.Final] = []
        self._orphans: list[worker_pb2.Orphan] = []
        self._filled.clear()

    @property
    def empty(self) -> bool:
        return not self._filled.is_set()

    def put_accepted(self, accepted: worker_pb2.Accepted) -> None:
        self._accepted.append(accepted)
        self._filled.set()

    def put_refused(self, refused: worker_pb2.Refused) -> None:
        self._refused.append(refused)
        self._filled.set()

    def put_progress(self, handle: int, num_prefilled: int) -> None:
        self._progress[handle] = num_prefilled
        self._filled.set()

    def put_tokens(
        self, handle: int, token_ids: Iterable[int], logprobs: Iterable[response_pb2.TokenLogprob] = ()
    ) -> None:
        self._tokens.setdefault(handle, array("I")).extend(token_ids)
        if logprobs:
            self._logprobs.setdefault(handle, []).extend(logprobs)
        self._filled.set()

    def put_final(self, final: worker_pb2.Final) -> None:
        self._finals.append(final)
        self._filled.set()

    def put_orphan(self, orphan: worker_pb2.Orphan) -> None:
        self._orphans.append(orphan)
        self._filled.set()

    def note_step(self, step: int) -> None:
        """What is put next belongs to this engine step."""
        self._first_step = self._first_step or step
        self._last_step = step

    async def wait(self, timeout_s: float) -> None:
        """Until there is something to send, or so many seconds."""
        # Not wait_for, which on Python 3.11 can swallow a cancellation.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._filled.wait()

    def take(self, epoch: str) -> worker_pb2.Frame:
        """Everything so far as one frame; it may be empty. Within it tokens come before finals."""
        packed: array[int] = array("I")
        for ids in self._tokens.values():
            packed.extend(ids)
        if sys.byteorder == "big":
            packed.byteswap()
        frame = worker_pb2.Frame(
            epoch=epoch,
            seq=self._seq,
            first_step=self._first_step,
            last_step=self._last_step,
            accepted=self._accepted,
            refused=self._refused,
            progress=[worker_pb2.Progress(handle=h, num_prefilled_tokens=n) for h, n in self._progress.items()],
            handles=list(self._tokens),
            num_tokens=[len(ids) for ids in self._tokens.values()],
            token_ids=packed.tobytes(),
            logprobs=[worker_pb2.SequenceLogprobs(handle=h, tokens=t) for h, t in self._logprobs.items()],
            finals=self._finals,
            orphans=self._orphans,
        )
        self._seq += 1
        self._reset()
        return frame
