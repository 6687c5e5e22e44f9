import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError, InvalidRequest, ResponseFailed, Unauthenticated, from_rpc_error
from tests.unit.kit.fakes import channel, serving


async def call(address: str, method: str, *, token: str | None = "service-token-of-the-tests") -> bytes:
    async with channel(address, token=token) as opened:
        return bytes(await opened.unary_unary(f"/test.Echo/{method}")(b"x", timeout=5))


def calls(method: str, code: str) -> float:
    value = telemetry.REGISTRY.get_sample_value("rpc_total", {"method": f"/test.Echo/{method}", "code": code})
    return value or 0.0


async def echo(request: bytes, _context: Any) -> bytes:
    return request


async def test_a_headrace_error_reaches_the_client_typed() -> None:
    async def refuse(_request: bytes, _context: Any) -> bytes:
        raise HeadraceError("invalid_argument", "top_k must be an integer", field="top_k", details={"limit": "5"})

    async with serving(refuse=refuse) as address:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(address, "refuse")
    error = from_rpc_error(caught.value, fallback="internal")
    assert isinstance(error, InvalidRequest)
    assert (error.reason, error.message, error.field, error.details) == (
        "invalid_argument",
        "top_k must be an integer",
        "top_k",
        {"limit": "5"},
    )


async def test_bytes_that_are_no_message_are_a_bad_argument() -> None:
    async with serving(echo=echo) as address, channel(address, token=None) as opened:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await opened.unary_unary("/grpc.health.v1.Health/Check")(b"\xff\xff\xff", timeout=5)
    error = from_rpc_error(caught.value, fallback="internal")
    assert (error.reason, error.field) == ("invalid_argument", "request")


async def test_an_unknown_exception_is_internal_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async def crash(_request: bytes, _context: Any) -> bytes:
        raise KeyError("private detail")

    before = calls("crash", "INTERNAL")
    async with serving(crash=crash) as address:
        with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(address, "crash")
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "private" not in f"{caught.value.details()}{caught.value.trailing_metadata()}"
    assert isinstance(from_rpc_error(caught.value, fallback="busy"), ResponseFailed)
    assert "rpc_crashed" in caplog.text and "private detail" in caplog.text
    assert calls("crash", "INTERNAL") == before + 1


@pytest.mark.parametrize("token", [None, "wrong", "service-token-of-the-test", ""])
async def test_a_missing_or_wrong_service_token_is_refused(token: str | None) -> None:
    async with serving(echo=echo) as address:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(address, "echo", token=token)
    assert isinstance(from_rpc_error(caught.value, fallback="internal"), Unauthenticated)


async def test_a_public_listener_asks_for_no_service_token() -> None:
    async with serving(token=None, echo=echo) as address:
        assert await call(address, "echo", token=None) == b"x"


@pytest.mark.parametrize("writer", [False, True])
async def test_an_error_after_messages_keeps_the_messages(writer: bool) -> None:
    async def generator(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        raise HeadraceError("engine_error", "the step failed")

    async def written(_request: bytes, context: Any) -> None:
        await context.write(b"1")
        await context.write(b"2")
        raise HeadraceError("engine_error", "the step failed")

    received = []
    async with serving(some_stream=written if writer else generator) as address, channel(address) as opened:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for message in opened.unary_stream("/test.Echo/some_stream")(b""):
                received.append(message)
    assert received == [b"1", b"2"]
    assert from_rpc_error(caught.value, fallback="internal").reason == "engine_error"


async def test_a_client_that_leaves_closes_the_generator_and_is_counted() -> None:
    closed, before = asyncio.Event(), calls("endless_stream", "CANCELLED")

    async def endless(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with serving(endless_stream=endless) as address, channel(address) as opened:
        stream = opened.unary_stream("/test.Echo/endless_stream")(b"")
        assert await stream.read() == b"first"
        stream.cancel()
        await asyncio.wait_for(closed.wait(), 5)
    assert calls("endless_stream", "CANCELLED") == before + 1


async def test_an_abort_by_the_servicer_passes_unchanged() -> None:
    async def gone(_request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
        return b""

    before = calls("gone", "NOT_FOUND")
    async with serving(gone=gone) as address:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(address, "gone")
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing")
    assert calls("gone", "NOT_FOUND") == before + 1


async def test_streams_both_ways_pass() -> None:
    async def double(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request * 2

    async with serving(double_bidi=double) as address, channel(address) as opened:
        stream = opened.stream_stream("/test.Echo/double_bidi")()
        await stream.write(b"a")
        assert await stream.read() == b"aa"
        await stream.write(b"bc")
        await stream.done_writing()
        assert [await stream.read(), await stream.read()] == [b"bcbc", grpc.aio.EOF]


@pytest.mark.parametrize(
    "text",
    ["😀" * 1_000_000, "\ud800 is half a character", "a\x00b\r\nc: d", "é" * 400],
    ids=["huge", "surrogate", "control", "long"],
)
async def test_whatever_a_message_holds_the_reason_arrives(text: str) -> None:
    async def refuse(_request: bytes, _context: Any) -> bytes:
        raise HeadraceError("invalid_argument", text, field=text, details={"given": text})

    async with serving(refuse=refuse) as address:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(address, "refuse")
    assert from_rpc_error(caught.value, fallback="internal").reason == "invalid_argument"
