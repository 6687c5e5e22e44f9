"""Limits of a connection, on real sockets: heads that are too large or too slow, and clients that never read."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace_gateway.http.protocol import BoundedProtocol
from headrace_kit.listeners import HttpListener


class Tight(BoundedProtocol):
    max_head_bytes = 1000
    head_s = 0.2
    stalled_s = 0.2


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers `ok`, or the body to /echo, or writes for ever to /flood, until the connection says otherwise."""
    body, more = b"ok", scope["path"] == "/echo"
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    while scope["path"] == "/flood" and not Ended.flood.is_set():
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await asyncio.sleep(0)  # a send to nobody does not wait
    await send({"type": "http.response.body", "body": body})


class Ended:
    flood = asyncio.Event()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[int]:
    listener = HttpListener("127.0.0.1:0", app, http=Tight)
    await listener.start()
    try:
        yield int(listener.address.rpartition(":")[2])
    finally:
        await listener.stop(1.0)


async def exchange(*parts: bytes) -> bytes:
    """Everything that is answered to these bytes, until the server closes or has answered once."""
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.01)
        answer = await asyncio.wait_for(reader.read(65536), 5.0)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return answer


def get(*headers: bytes, path: bytes = b"/") -> bytes:
    return b"\r\n".join([b"GET " + path + b" HTTP/1.1", b"host: x", *headers, b"", b""])


async def test_an_ordinary_request_is_served() -> None:
    assert (await exchange(get(b"a: " + b"x" * 900))).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "head",
    [get(b"a: " + b"x" * 1001), get(*[b"a: " + b"x" * 100] * 11), get(path=b"/" + b"x" * 1001)],
    ids=["one large", "many small", "path"],
)
async def test_a_large_head_is_431(head: bytes) -> None:
    assert (await exchange(head)).startswith(b"HTTP/1.1 431")  # B44


async def test_a_header_without_an_end_is_431() -> None:
    assert (await exchange(b"GET / HTTP/1.1\r\na: ", *[b"x" * 300] * 4)).startswith(b"HTTP/1.1 431")


async def test_a_head_that_does_not_come_is_408() -> None:
    assert (await exchange(b"GET / HTTP/1.1\r\n")).startswith(b"HTTP/1.1 408")
    assert (await exchange()).startswith(b"HTTP/1.1 408")


async def test_what_is_no_http_is_400() -> None:
    assert (await exchange(b"hello\r\n\r\n")).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
async def test_a_request_that_offers_another_protocol_is_served(protocol: bytes) -> None:
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: " + protocol + b"\r\nhttp2-settings: AAMAAABkAAQ\r\n"
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\n" + offer + b"content-length: 5\r\n\r\n"
    for parts in ((head + b"hello",), (head, b"hel", b"lo"), (head[:30], head[30:] + b"hello")):
        answer = await exchange(*parts)
        assert answer.startswith(b"HTTP/1.1 200") and b"hello" in answer


async def test_a_tunnel_is_refused() -> None:
    assert (await exchange(b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n")).startswith(b"HTTP/1.1 400")


async def test_a_body_is_no_part_of_the_head() -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n"
    assert (await exchange(head + b"x" * 5000)).startswith(b"HTTP/1.1 200")


async def test_a_second_request_has_limits_of_its_own() -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(get(b"a: " + b"x" * 600))
            answer = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5.0)
            assert answer.startswith(b"HTTP/1.1 200")
        writer.write(get(b"a: " + b"x" * 1001))
        assert (await asyncio.wait_for(reader.read(), 5.0)).startswith(b"HTTP/1.1 431")
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_never_reads_is_cut() -> None:
    Ended.flood.clear()
    async with serving() as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(get(path=b"/flood"))
        deadline = asyncio.get_running_loop().time() + 5.0
        with pytest.raises(ConnectionError):
            while asyncio.get_running_loop().time() < deadline:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        Ended.flood.set()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
