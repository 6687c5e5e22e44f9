"""A raw-bytes gRPC service whose behaviour a test chooses, and a process that serves it through the kit."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from headrace_kit.channels import connect
from headrace_kit.health import Health
from headrace_kit.listeners import GrpcListener

TOKEN = "service-token-of-the-tests"


def handlers(**behaviours: Any) -> Any:
    """Generic handlers of service ``test.Echo``: names ending in _stream answer a stream, in _bidi take one too."""
    kinds = {"stream": grpc.unary_stream_rpc_method_handler, "bidi": grpc.stream_stream_rpc_method_handler}
    made: dict[str, Any] = {
        name: kinds.get(name.rpartition("_")[2], grpc.unary_unary_rpc_method_handler)(behaviour)
        for name, behaviour in behaviours.items()
    }
    return grpc.method_handlers_generic_handler("test.Echo", made)


@contextlib.asynccontextmanager
async def serving(*, token: str | None = TOKEN, health: Health | None = None, **behaviours: Any) -> AsyncIterator[str]:
    """Serves the behaviours on a free loopback port; yields its address."""
    listener = GrpcListener("127.0.0.1:0", health or Health(), token=token)
    listener.add_generic_rpc_handlers([handlers(**behaviours)])
    await listener.start()
    try:
        yield listener.address
    finally:
        await listener.stop(0)


@contextlib.asynccontextmanager
async def channel(address: str, *, token: str | None = TOKEN, **kwargs: Any) -> AsyncIterator[Any]:
    async with connect(address, token=token, **kwargs) as opened:
        yield opened
