"""The blocking client: the same calls as the asyncio one, for scripts and notebooks."""

from collections.abc import Iterator
from typing import Any, Self

import grpc

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import inference_pb2_grpc
from headrace_cli.client.request import Prompt, build_request
from headrace_cli.client.stream import StreamCursor
from headrace_kit.channels import client_options
from headrace_kit.errors import from_rpc_error

DEFAULT_TIMEOUT_S = 30.0


class Stream(StreamCursor):
    """One response: iterate its events; leaving the block before the terminal cancels it."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call.cancel()

    def __iter__(self) -> Iterator[pb.ResponseEvent]:
        try:
            for event in self._call:
                yield self.accept(event)
        except grpc.RpcError as error:
            fault = error
            raise self.failure(lambda: from_rpc_error(fault, fallback="gateway_lost")) from error
        self.end()

    def text(self) -> str:
        """Reads to the end and returns the text of choice 0; raises if the response failed or was cancelled."""
        for _ in self:
            pass
        self.raise_for_terminal()
        return self.texts.get(0, "")


class Client:
    """Calls one gateway. ``target`` is its public gRPC address, ``api_key`` the caller's key.

    ``ca`` turns TLS on: the PEM of the authority that signed the gateway's certificate, or b"" for the well-known ones.
    """

    def __init__(self, target: str, *, api_key: str, ca: bytes | None = None) -> None:
        options = client_options(target)
        if ca is None:
            self._channel = grpc.insecure_channel(target, options)
        else:
            self._channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(ca or None), options)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)
        self._metadata = (("authorization", f"Bearer {api_key}"),)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def generate(
        self,
        model: str,
        prompt: Prompt,
        *,
        deadline_s: float | None = None,
        wait_for_ready: bool = False,
        **options: Any,
    ) -> Stream:
        """Starts one response; see ``build_request`` for prompt and options. ``deadline_s`` bounds it in all."""
        request = build_request(model, prompt, **options)
        return Stream(
            self._stub.Generate(request, timeout=deadline_s, metadata=self._metadata, wait_for_ready=wait_for_ready)
        )

    def cancel(self, response_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Ends a response of the caller's tenant; True if it was running."""
        return bool(self._unary(self._stub.Cancel, pb.CancelRequest(response_id=response_id), timeout_s).found)

    def models(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[pb.Model]:
        """The models that the caller may name."""
        return list(self._unary(self._stub.ListModels, pb.ListModelsRequest(), timeout_s).models)

    def count_tokens(self, model: str, prompt: Prompt, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        """Prompt tokens after the chat template."""
        request = pb.CountTokensRequest(request=build_request(model, prompt))
        return int(self._unary(self._stub.CountTokens, request, timeout_s).num_prompt_tokens)

    def _unary(self, method: Any, request: Any, timeout_s: float) -> Any:
        try:
            return method(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error, fallback="gateway_lost") from error
