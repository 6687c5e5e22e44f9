"""The one screening stream between this gateway and policy, multiplexed over all responses that need it.

When it breaks, every response with text in it hears that policy was lost; the next one opens a new stream.
"""

import asyncio
from functools import partial
from typing import Protocol

import grpc

from headrace.v1 import policy_pb2 as pb
from headrace_gateway.lifecycle import events, outputs
from headrace_gateway.upstreams.policy import PolicyClient
from headrace_kit.lifecycle import report_crash


class Screened(Protocol):
    """A response whose output is screened."""

    response_id: str

    @property
    def tenant(self) -> str: ...
    @property
    def snapshot_version(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    def feed(self, event: events.Event) -> None: ...


class ScreenClient:
    """Sends text and hands verdicts to the response that they are for."""

    def __init__(self, policy: PolicyClient) -> None:
        self._policy = policy
        self._responses: dict[str, Screened] = {}
        self._requests: asyncio.Queue[pb.ScreenRequest] | None = None
        self._reader: asyncio.Task[None] | None = None

    def send(self, response: Screened, output: outputs.Screen) -> None:
        """New raw text of one choice of the current attempt."""
        requests = self._opened()
        key = _key(response.response_id, output.attempt)
        message = pb.ScreenRequest(
            response_id=key,
            choice=output.choice,
            offset=output.offset,
            text=output.text,
            final=output.final,
        )
        if key not in self._responses:
            self._responses[key] = response
            message.tenant, message.snapshot_version = response.tenant, response.snapshot_version
        requests.put_nowait(message)

    def close(self, response: Screened, attempt: int) -> None:
        """Nothing more of this attempt of the response."""
        key = _key(response.response_id, attempt)
        if self._responses.pop(key, None) is not None and self._requests is not None:
            self._requests.put_nowait(pb.ScreenRequest(response_id=key, close=True))

    def _opened(self) -> "asyncio.Queue[pb.ScreenRequest]":
        if self._requests is None:
            self._requests = asyncio.Queue()
            self._reader = asyncio.create_task(self._read(self._requests), name="screen")
            self._reader.add_done_callback(partial(report_crash, "screen"))
        return self._requests

    async def _read(self, requests: "asyncio.Queue[pb.ScreenRequest]") -> None:
        call = self._policy.screen(requests)
        try:
            async for verdict in call:
                if (response := self._responses.get(verdict.response_id)) is not None:
                    response.feed(_event(response.attempt, verdict))
        except grpc.aio.AioRpcError:
            pass  # ended is ended: what follows is the same for a clean end
        finally:
            call.cancel()
            self._requests = None
            lost, self._responses = self._responses, {}
            for response in lost.values():
                response.feed(events.PolicyLost())


def _key(response_id: str, attempt: int) -> str:
    """Text of different attempts must not meet in one screen."""
    return response_id if attempt == 1 else f"{response_id}/{attempt}"


def _event(attempt: int, verdict: pb.ScreenVerdict) -> events.Event:
    redactions = tuple(events.Redaction(cut.start, cut.end, cut.replacement) for cut in verdict.redactions)
    if verdict.verdict == pb.ScreenVerdict.VERDICT_BLOCKED:
        return events.ScreenBlocked(attempt, verdict.choice, verdict.released_up_to, redactions, verdict.rule)
    if verdict.verdict == pb.ScreenVerdict.VERDICT_LOST:
        return events.PolicyLost()
    flagged = verdict.verdict == pb.ScreenVerdict.VERDICT_FLAGGED
    return events.ScreenReleased(attempt, verdict.choice, verdict.released_up_to, redactions, flagged)
