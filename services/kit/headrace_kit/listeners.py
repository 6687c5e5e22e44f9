"""Bound ports: a gRPC server and an HTTP server that say clearly when their address is taken. No policy of stopping."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable
from typing import Any, cast

import grpc
import uvicorn
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headrace_kit.channels import KeyPair, Tls, server_options
from headrace_kit.health import Health
from headrace_kit.interceptors import RpcInterceptor


class StartError(Exception):
    """The process cannot start; one sentence for its operator, and the exit code (2 configuration, 3 address)."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def check_files(tls: KeyPair | Tls) -> None:
    """StartError for a file that is missing, is no PEM, or does not belong to the others; gRPC would say neither."""
    try:
        context = ssl.create_default_context(cafile=tls.ca if isinstance(tls, Tls) else None)
        context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        raise StartError(2, f"cannot use certificate {tls.cert} with key {tls.key}: {error}") from error


class GrpcListener:
    """A bound grpc.aio server; hand it to the generated ``add_XServicer_to_server(servicer, listener)``.

    ``token`` None makes it public: health and what is added, no reflection, no token.
    """

    def __init__(self, listen: str, health: Health, *, token: str | None, tls: KeyPair | Tls | None = None) -> None:
        if tls:
            check_files(tls)
        self.server = grpc.aio.server(interceptors=[RpcInterceptor(token)], options=server_options())
        _bind(listen).close()  # gRPC's core would report a taken port on stderr in its own words
        try:
            port = self.server.add_secure_port(listen, tls.server()) if tls else self.server.add_insecure_port(listen)
        except RuntimeError:
            raise _taken(listen) from None
        self.address = f"{listen.rpartition(':')[0]}:{port}"
        self._public, self._services = token is None, [reflection.SERVICE_NAME]
        health_pb2_grpc.add_HealthServicer_to_server(health, cast(grpc.aio.Server, self))

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        for handler in handlers:
            self._services.append(handler.service_name())
            self.server.add_generic_rpc_handlers([handler])

    def add_registered_method_handlers(self, service_name: str, method_handlers: Any) -> None:
        self.server.add_registered_method_handlers(service_name, method_handlers)

    async def start(self) -> None:
        if not self._public:
            reflection.enable_server_reflection(self._services, self.server)
        await self.server.start()

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls and gives those in flight ``grace_s`` seconds."""
        await self.server.stop(grace_s)


class HttpListener(uvicorn.Server):
    """An ASGI app on a bound socket, with TLS if there is a certificate; further arguments are uvicorn.Config's."""

    def __init__(self, listen: str, app: Any, *, tls: KeyPair | Tls | None = None, **options: Any) -> None:
        if tls:
            check_files(tls)
            options |= {"ssl_certfile": tls.cert, "ssl_keyfile": tls.key}
        super().__init__(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", **options))
        self._socket, self._up = _bind(listen), asyncio.Event()
        self.address = f"{listen.rpartition(':')[0]}:{self._socket.getsockname()[1]}"
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield  # signals belong to serve.run

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()

    async def start(self) -> None:
        self._task = asyncio.create_task(self.serve([self._socket]), name=f"http {self.address}")
        await self._up.wait()

    async def stop(self, grace_s: float) -> None:
        """Closes the port and gives the requests in flight ``grace_s`` seconds."""
        self.should_exit = True
        if self._task is None:
            self._socket.close()
        elif not (await asyncio.wait([self._task], timeout=grace_s))[0]:
            self.force_exit = True
            await self._task


def _bind(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise StartError(2, f"{listen!r} is not an address of the form host:port")
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host.strip("[]"), int(port)))
        bound.listen(1024)  # two sockets may be bound to one address as long as neither listens
    except OSError:
        bound.close()
        raise _taken(listen) from None
    return bound


def _taken(listen: str) -> StartError:
    return StartError(3, f"cannot listen on {listen}: the address is taken or not on this host")
