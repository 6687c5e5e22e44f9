"""Client channels and the server options that match them: keepalive, back-off, token, trace, deadlines. No stubs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc

from headrace_kit import tracing

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
class KeyPair:
    """A listener's certificate and its key (PEM files): TLS that does not ask who the caller is."""

    cert: Path
    key: Path

    def server(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.cert.read_bytes())])


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


@dataclass(frozen=True)
class Trust:
    """The authority that must have signed the peer's certificate (PEM file); we show none of our own."""

    ca: Path

    def client(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca.read_bytes())


def identity(service: str) -> str:
    """The name in the certificate of every instance of a service, wherever it runs; nothing resolves it."""
    return f"{service}.headrace.internal"


def connect(
    target: str, *, token: str | None, peer: str | None = None, tls: Tls | Trust | None = None, options: Options = ()
) -> grpc.aio.Channel:
    """A channel that sends ``token`` and the trace context; ``options`` override ours. Unary calls need a timeout.

    With ``tls`` the other side must prove to be the service ``peer``; without one, to have the host name of ``target``.
    """
    if tls is None:
        channel = grpc.aio.insecure_channel(target, client_options(target, options))
    else:
        name = [("grpc.ssl_target_name_override", identity(peer))] if peer else []
        channel = grpc.aio.secure_channel(target, tls.client(), client_options(target, [*name, *options]))
    return cast(grpc.aio.Channel, _Outgoing(channel, token))


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
    address = rest if scheme in ("dns", "ipv4", "ipv6") else target
    host = address.rpartition("/")[2].rpartition(":")[0].strip("[]")
    loopback = re.fullmatch(r"localhost|::1|127(\.\d{1,3}){3}", host) is not None
    return loopback or scheme in ("unix", "unix-abstract")


class _Outgoing:
    """A channel whose calls carry token and trace. grpc.aio's interceptors would do it with a task for each call."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None) -> None:
        self._channel, self._own = channel, {} if token is None else {"authorization": f"Bearer {token}"}

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._channel, name)
        return partial(self._made, own, name) if name.startswith(("unary_", "stream_")) else own

    async def __aenter__(self) -> "_Outgoing":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

    def _made(self, make: Any, kind: str, method: str, *args: Any, **options: Any) -> Any:
        return partial(self._call, make(method, *args, **options), kind, method)

    def _call(self, call: Any, kind: str, method: str, *request: Any, metadata: Any = (), **options: Any) -> Any:
        if kind == "unary_unary":
            assert options.get("timeout") is not None, f"unary call {method} without a deadline"
        # A stream that carries many responses belongs to none of their traces.
        ours, given = self._own | (tracing.inject() if kind.startswith("unary_") else {}), dict(metadata or ())
        ours = {name: value for name, value in ours.items() if name not in given}
        return call(*request, metadata=(*(metadata or ()), *ours.items()), **options)
