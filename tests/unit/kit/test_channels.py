import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace_kit import tracing
from headrace_kit.channels import connect, is_local, server_options
from headrace_kit.health import Health
from headrace_kit.interceptors import RpcInterceptor
from headrace_kit.listeners import GrpcListener
from tests.unit.kit.fakes import TOKEN, channel, handlers, serving


async def headers_seen(_request: bytes, context: Any) -> bytes:
    names = ("authorization", "traceparent")
    return repr(sorted((k, v) for k, v in context.invocation_metadata() if k in names)).encode()


async def headers_stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield await headers_seen(request, context)


async def headers_bidi(_requests: Any, context: Any) -> AsyncIterator[bytes]:
    yield await headers_seen(b"", context)


async def test_every_kind_of_call_carries_the_token_and_those_of_one_response_its_trace() -> None:
    context = tracing.root()
    with tracing.entered(context):
        token = ("authorization", f"Bearer {TOKEN}")
        expected = repr([token, ("traceparent", context.header)]).encode()
        async with (
            serving(seen=headers_seen, seen_stream=headers_stream, seen_bidi=headers_bidi) as address,
            channel(address) as opened,
        ):
            assert await opened.unary_unary("/test.Echo/seen")(b"", timeout=5) == expected
            assert await opened.unary_stream("/test.Echo/seen_stream")(b"").read() == expected
            shared = opened.stream_stream("/test.Echo/seen_bidi")(iter(()))
            assert await shared.read() == repr([token]).encode()


async def test_a_caller_may_send_its_own_authorization() -> None:
    async with serving(token=None, seen=headers_seen) as address, channel(address) as opened:
        call = opened.unary_unary("/test.Echo/seen")
        assert (
            await call(b"", timeout=5, metadata=(("authorization", "Bearer other"),))
            == repr([("authorization", "Bearer other")]).encode()
        )


async def test_a_unary_call_without_a_deadline_is_our_own_mistake() -> None:
    async with serving(seen=headers_seen) as address, channel(address) as opened:
        with pytest.raises(AssertionError, match=r"/test\.Echo/seen without a deadline"):
            await opened.unary_unary("/test.Echo/seen")(b"")


@pytest.mark.parametrize(
    "target, local",
    [
        ("127.0.0.1:80", True),
        ("127.9.9.9:80", True),
        ("localhost:80", True),
        ("[::1]:80", True),
        ("unix:/run/x", True),
        ("unix:///run/x", True),
        ("dns:///localhost:80", True),
        ("ipv4:127.0.0.1:80", True),
        ("ipv6:[::1]:80", True),
        ("10.0.0.1:80", False),
        ("router:80", False),
        ("dns:///router:80", False),
        ("127.0.0.1.evil.example:80", False),
    ],
)
def test_only_unix_and_loopback_targets_are_local(target: str, local: bool) -> None:
    assert is_local(target) is local


async def test_a_proxy_in_the_environment_does_not_break_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with serving(seen=headers_seen) as address, channel(address) as opened:
        assert await opened.unary_unary("/test.Echo/seen")(b"", timeout=5)


async def test_a_long_silent_stream_survives_many_keepalive_pings() -> None:
    """Ten minutes of silence at 10 s keepalive are 60 pings; here 60 pings take 1.2 s."""
    fast = (("grpc.keepalive_time_ms", 20), ("grpc.http2.min_ping_interval_without_data_ms", 10))

    async def silent(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield b"prefill begins"
        await asyncio.sleep(1.2)
        yield b"prefill ends"

    server = grpc.aio.server(interceptors=[RpcInterceptor(TOKEN)], options=server_options(fast))
    server.add_generic_rpc_handlers([handlers(silent_stream=silent)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with channel(f"127.0.0.1:{port}", options=fast) as opened:
        stream = opened.unary_stream("/test.Echo/silent_stream")(b"")
        assert [message async for message in stream] == [b"prefill begins", b"prefill ends"]
    await server.stop(0)


async def test_a_restarted_server_is_found_again_within_the_bounded_backoff() -> None:
    async with serving(seen=headers_seen) as address:
        pass
    async with channel(address) as opened:
        call = opened.unary_unary("/test.Echo/seen")
        for _ in range(5):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(b"", timeout=0.5)
        async with asyncio.timeout(10):
            listener = GrpcListener(address, Health(), token=TOKEN)
            listener.add_generic_rpc_handlers([handlers(seen=headers_seen)])
            await listener.start()
            assert await call(b"", timeout=5, wait_for_ready=True)
        await listener.stop(0)


def test_the_server_mirrors_the_clients_keepalive() -> None:
    options = dict(server_options())
    assert options["grpc.keepalive_time_ms"] == 10_000
    assert int(options["grpc.http2.min_ping_interval_without_data_ms"]) < int(options["grpc.keepalive_time_ms"])
    assert options["grpc.max_receive_message_length"] == options["grpc.max_send_message_length"] == 64 * 1024 * 1024


async def test_a_message_near_64_mib_passes() -> None:
    async def size(request: bytes, _context: Any) -> bytes:
        return str(len(request)).encode()

    async with serving(size=size) as address, channel(address) as opened:
        assert await opened.unary_unary("/test.Echo/size")(bytes(60 * 1024 * 1024), timeout=20) == b"62914560"


async def test_a_unix_socket_target_connects(tmp_path: Path) -> None:
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers([handlers(seen=headers_seen)])
    server.add_insecure_port(f"unix:{tmp_path}/s")
    await server.start()
    async with connect(f"unix:{tmp_path}/s", token=None) as opened:
        call: Any = opened.unary_unary("/test.Echo/seen")
        assert await call(b"", timeout=5) == b"[]"
    await server.stop(0)
