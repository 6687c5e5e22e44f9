"""Client channels and the server options that match them: keepalive, back-off, token, trace, deadlines. No stubs."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from headrace_kit import telemetry

Options = Sequence[tuple[str, str | int]]
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_SHARED: dict[str, str | int] = {
    # A prefill of ten minutes sends nothing: pings keep the connection, and no count of silent pings ends it.
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.http2.ping_timeout_ms": 10_000,  # without it a frozen peer is noticed only after a minute
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.max_pings_without_data": 0,
    # Must be below the peer's keepalive_time, or a server answers honest pings with GOAWAY too_many_pings.
    "grpc.http2.min_ping_interval_without_data_ms": 5_000,
    "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
    "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
}
_CLIENT: dict[str, str | int] = {
    **_SHARED,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 2_000,
    # Despite its name this is the time one connection attempt may take.
    "grpc.min_reconnect_backoff_ms": 2_000,
}


@dataclass(frozen=True)
class Tls:
    """Mutual TLS: our certificate and key, and the authority that must have signed the peer's (PEM files)."""

    ca: Path
    cert: Path
    key: Path

    def client(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), self.key.read_bytes(), self.cert.read_bytes())

    def server(self) -> grpc.ServerCredentials:
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], self.ca.read_bytes(), require_client_auth=True)


def connect(target: str, *, token: str | None, tls: Tls | None = None, options: Options = ()) -> grpc.aio.Channel:
    """A channel that sends ``token`` and the trace context; ``options`` override ours. Unary calls need a timeout."""
    merged = client_options(target, options)
    interceptors = [kind(token) for kind in (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)]
    if tls is None:
        return grpc.aio.insecure_channel(target, merged, interceptors=interceptors)
    return grpc.aio.secure_channel(target, tls.client(), merged, interceptors=interceptors)


def client_options(target: str, extra: Options = ()) -> list[tuple[str, str | int]]:
    """Options of every client channel of ours; ``extra`` override them."""
    proxy = {"grpc.enable_http_proxy": 0} if is_local(target) else {}
    return list({**_CLIENT, **proxy, **dict(extra)}.items())


def server_options(extra: Options = ()) -> list[tuple[str, str | int]]:
    """Options for grpc.aio.server; so_reuseport is off so that a taken port is an error and not a shared one."""
    return list({**_SHARED, "grpc.so_reuseport": 0, **dict(extra)}.items())


def is_local(target: str) -> bool:
    """Whether a gRPC target is a unix socket or loopback, where a proxy from the environment must not apply."""
    scheme, _, rest = target.partition(":")
    if scheme in ("unix", "unix-abstract"):
        return True
    address = rest if scheme in ("dns", "ipv4", "ipv6") else target
    host = address.rpartition("/")[2].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Outgoing:
    def __init__(self, token: str | None) -> None:
        self._token = token

    def _details(self, details: grpc.aio.ClientCallDetails, *, deadline: bool = False) -> grpc.aio.ClientCallDetails:
        name = details.method.decode() if isinstance(details.method, bytes) else details.method
        assert details.timeout is not None or not deadline, f"unary call {name} without a deadline"
        ours = telemetry.inject() | ({} if self._token is None else {"authorization": f"Bearer {self._token}"})
        given: dict[str, Any] = dict(details.metadata or ())
        metadata = grpc.aio.Metadata(*(details.metadata or ()), *((k, v) for k, v in ours.items() if k not in given))
        return grpc.aio.ClientCallDetails(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
        )


class _UnaryUnary(_Outgoing, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(self._details(client_call_details, deadline=True), request)


class _UnaryStream(_Outgoing, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(self._details(client_call_details), request)


class _StreamUnary(_Outgoing, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(self._details(client_call_details), request_iterator)


class _StreamStream(_Outgoing, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(self._details(client_call_details), request_iterator)
