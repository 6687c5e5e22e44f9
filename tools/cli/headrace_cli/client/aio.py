"""The asyncio client."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import grpc

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import inference_pb2_grpc
from headrace_cli.client.request import Prompt, build_request
from headrace_cli.client.stream import StreamCursor
from headrace_kit.channels import client_options, connect
from headrace_kit.errors import from_rpc_error

DEFAULT_TIMEOUT_S = 30.0


class AsyncStream(StreamCursor):
    """One response: iterate its events; leaving the block before the terminal cancels it."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.cancel()

    async def __aiter__(self) -> AsyncIterator[pb.ResponseEvent]:
        try:
            async for event in self._call:
                yield self.accept(event)
        except grpc.RpcError as error:
            fault = error
            raise self.failure(lambda: from_rpc_error(fault, fallback="gateway_lost")) from error
        self.end()

    async def text(self) -> str:
        """Reads to the end and returns the text of choice 0; raises if the response failed or was cancelled."""
        async for _ in self:
            pass
        self.raise_for_terminal()
        return self.texts.get(0, "")


class AsyncClient:
    """Calls one gateway. ``target`` is its public gRPC address, ``api_key`` the caller's key."""

    def __init__(self, target: str, *, api_key: str, ca: bytes | None = None) -> None:
        if ca is None:
            self._channel = connect(target, token=api_key)
        else:
            key = grpc.access_token_call_credentials(api_key)
            credentials = grpc.composite_channel_credentials(grpc.ssl_channel_credentials(ca or None), key)
            self._channel = grpc.aio.secure_channel(target, credentials, client_options(target))
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    def generate(
        self,
        model: str,
        prompt: Prompt,
        *,
        deadline_s: float | None = None,
        wait_for_ready: bool = False,
        **options: Any,
    ) -> AsyncStream:
        """Starts one response; see ``build_request`` for prompt and options. ``deadline_s`` bounds it in all."""
        request = build_request(model, prompt, **options)
        return AsyncStream(self._stub.Generate(request, timeout=deadline_s, wait_for_ready=wait_for_ready))

    async def cancel(self, response_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Ends a response of the caller's tenant; True if it was running."""
        answer = await self._unary(self._stub.Cancel, pb.CancelRequest(response_id=response_id), timeout_s)
        return bool(answer.found)

    async def models(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[pb.Model]:
        """The models that the caller may name."""
        answer = await self._unary(self._stub.ListModels, pb.ListModelsRequest(), timeout_s)
        return list(answer.models)

    async def count_tokens(self, model: str, prompt: Prompt, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        """Prompt tokens after the chat template."""
        request = pb.CountTokensRequest(request=build_request(model, prompt))
        answer = await self._unary(self._stub.CountTokens, request, timeout_s)
        return int(answer.num_prompt_tokens)

    async def _unary(self, method: Any, request: Any, timeout_s: float) -> Any:
        try:
            return await method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error, fallback="gateway_lost") from error
