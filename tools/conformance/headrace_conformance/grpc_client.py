"""Talks the gRPC contract and records calls as plain data. Needs headrace-protos and grpcio."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import inference_pb2_grpc as stubs
from headrace_conformance.checks.grpc_events import TERMINALS, Call, GrpcEvent

_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 64 << 20)]


class GrpcClient:
    """One channel to one gateway; every call is bounded by ``timeout_s``."""

    def __init__(self, address: str, api_key: str, timeout_s: float = 30.0) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._stub: Any = stubs.InferenceStub(self._channel)
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._timeout_s = timeout_s

    async def close(self) -> None:
        await self._channel.close()

    async def generate(
        self, name: str, request: pb.GenerateRequest, *, leave_after: int | None = None, timeout_s: float | None = None
    ) -> Call:
        """Records one call to its end, or until ``leave_after`` events have come; then it is cancelled."""
        stream = self._stub.Generate(request, metadata=self._metadata, timeout=timeout_s or self._timeout_s)
        events: list[GrpcEvent] = []
        try:
            async for event in stream:
                events.append(_plain(event))
                if len(events) == leave_after:
                    stream.cancel()
                    break
        except grpc.aio.AioRpcError:
            pass
        left = leave_after is not None and len(events) == leave_after
        status = (await stream.code()).name if not left else "CANCELLED"
        return Call(name, tuple(events), status, max(1, request.n), left)

    async def cancel(self, response_id: str) -> bool:
        """Whether a live response was found."""
        request = pb.CancelRequest(response_id=response_id)
        answer = await self._stub.Cancel(request, metadata=self._metadata, timeout=self._timeout_s)
        return bool(answer.found)

    async def generate_and_cancel(self, name: str, request: pb.GenerateRequest) -> Call:
        """Ends the response with Cancel behind its second event and records what still comes."""
        stream = self._stub.Generate(request, metadata=self._metadata, timeout=self._timeout_s)
        events: list[GrpcEvent] = []
        try:
            async for event in stream:
                events.append(_plain(event))
                if len(events) == 2:
                    await self.cancel(event.response_id)
        except grpc.aio.AioRpcError:
            pass
        return Call(name, tuple(events), (await stream.code()).name)

    async def models(self) -> list[str]:
        answer = await self._stub.ListModels(pb.ListModelsRequest(), metadata=self._metadata, timeout=self._timeout_s)
        return [model.id for model in answer.models]

    async def count_tokens(self, request: pb.GenerateRequest) -> int:
        counted = pb.CountTokensRequest(request=request)
        answer = await self._stub.CountTokens(counted, metadata=self._metadata, timeout=self._timeout_s)
        return int(answer.num_prompt_tokens)


@dataclass(frozen=True)
class Ask:
    """Builds requests for one model."""

    model: str

    def chat(self, content: str, **fields: Any) -> pb.GenerateRequest:
        request = pb.GenerateRequest(model=self.model, **fields)
        request.chat.messages.add(role="user", content=content)
        request.sampling.temperature = 0.0
        return request


def _plain(event: pb.ResponseEvent) -> GrpcEvent:
    kind = event.WhichOneof("event") or ""
    body = getattr(event, kind) if kind else None
    return GrpcEvent(event.response_id, event.sequence_number, kind, dict(_fields(kind, body)))


def _fields(kind: str, body: Any) -> Mapping[str, Any]:
    if kind == "delta":
        call = body.tool_call if body.HasField("tool_call") else None
        return {"choice": body.choice, "text": body.text, "num_tokens": body.num_tokens, "reasoning": body.reasoning,
                "tool_call": call is not None, "num_logprobs": len(body.logprobs)}  # fmt: skip
    if kind == "choice_finished":
        return {"choice": body.choice, "reason": body.reason, "num_output_tokens": body.num_output_tokens}
    if kind in TERMINALS:
        return {"reason": getattr(body, "reason", ""), "num_prompt_tokens": body.usage.num_prompt_tokens,
                "num_output_tokens": body.usage.num_output_tokens}  # fmt: skip
    return {"model": body.model, "retry_of": body.retry_of, "snapshot_version": body.snapshot_version} if body else {}
