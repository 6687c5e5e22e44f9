"""How a connection ends, on real sockets: nobody loses an answer that was written, and nobody is read for ever."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from headrace_gateway.http.lingering import LingeringTransport
from headrace_gateway.http.protocol import BoundedProtocol
from headrace_kit.listeners import HttpListener

PART = b"x" * 65536


class Brief(LingeringTransport):
    linger_s = 0.3


class Tight(BoundedProtocol):
    max_head_bytes = 1000
    lingering = Brief


def on_both_loops(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
    """Closing is where event loops differ; the gateway runs on uvloop."""

    @pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    def run(new_loop: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test())

    marked: Callable[[Any], None] = run
    return marked


async def app(scope: Any, receive: Any, send: Any) -> None:
    """/refused is answered at once; /told says when its client left; anything else hears the whole body first."""
    said = b"refused"
    if scope["path"] != "/refused":
        num_bytes, more = 0, True
        while more:
            message = await receive()
            num_bytes, more = num_bytes + len(message.get("body", b"")), message.get("more_body", False)
        said = b"%d bytes" % num_bytes if message["type"] == "http.request" else b"cut"
    if scope["path"] == "/told":
        while (await receive())["type"] != "http.disconnect":
            pass
        said = b"you left"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": said, "more_body": True})
    await send({"type": "http.response.body", "body": b"!", "more_body": False})


class Connection:
    """A client's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.write, self._reader, self._writer = writer.write, reader, writer

    def close_sending(self) -> None:
        self._writer.write_eof()

    async def send_for_ever(self) -> None:
        while True:
            self.write(PART)
            await self._writer.drain()

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        return await asyncio.wait_for(self._reader.read(), 5.0)


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Connection]:
    listener = HttpListener("127.0.0.1:0", app, http=Tight)
    await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(listener.address.rpartition(":")[2]))
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        await listener.stop(1.0)


def post(path: bytes, num_bytes: int, *headers: bytes, version: bytes = b"1.1") -> bytes:
    length = b"content-length: %d" % num_bytes
    return b"\r\n".join([b"POST %s HTTP/%s" % (path, version), b"host: x", length, *headers, b"", b""])


@on_both_loops
async def test_http_1_0_gets_no_chunks() -> None:
    async with connected() as client:
        client.write(post(b"/", 2, version=b"1.0") + b"ab")
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert body == b"2 bytes!"
    assert b"chunked" not in head and b"connection: close" in head


@on_both_loops
async def test_a_client_that_closed_its_direction_is_answered() -> None:
    async with connected() as client:
        client.write(post(b"/", 2) + b"ab")
        client.close_sending()
        assert b"2 bytes" in await client.rest()


@on_both_loops
async def test_a_client_that_closed_its_direction_counts_as_gone_and_is_told() -> None:
    async with connected() as client:
        client.write(post(b"/told", 2) + b"ab")
        await asyncio.sleep(0.05)
        client.close_sending()
        assert b"you left" in await client.rest()


@on_both_loops
async def test_a_body_cut_short_is_no_body() -> None:
    async with connected() as client:
        client.write(post(b"/", 9) + b"ab")
        client.close_sending()
        assert b"cut" in await client.rest()


@on_both_loops
async def test_requests_in_a_row_are_answered_after_the_client_closed_its_direction() -> None:
    async with connected() as client:
        client.write(post(b"/", 2) + b"ab" + post(b"/", 3) + b"abc")
        client.close_sending()
        answer = await client.rest()
    assert b"2 bytes" in answer and b"3 bytes" in answer


@on_both_loops
async def test_a_client_refused_while_it_sends_its_head_reads_why() -> None:
    async with connected() as client:
        client.write(b"GET / HTTP/1.1\r\na: " + PART * 40)
        assert (await client.rest()).startswith(b"HTTP/1.1 431")


@on_both_loops
async def test_a_client_refused_while_it_sends_its_body_reads_why() -> None:
    async with connected() as client:
        client.write(post(b"/refused", 50 * len(PART), b"connection: close") + PART * 20)
        await asyncio.sleep(0.05)
        client.write(PART * 30)
        assert b"refused" in await client.rest()


@on_both_loops
async def test_the_connection_goes_on_after_a_body_that_nobody_wanted() -> None:
    async with connected() as client:
        client.write(post(b"/refused", 50 * len(PART)) + PART * 50)
        await asyncio.sleep(0.4)  # longer than a body may still come: it was whole
        client.write(post(b"/", 1, b"connection: close") + b"a")
        answer = await client.rest()
    assert b"refused" in answer and b"1 bytes" in answer


@on_both_loops
async def test_nobody_is_read_for_ever() -> None:
    for header in (b"connection: close", b"connection: keep-alive"):
        async with connected() as client:
            client.write(post(b"/refused", 10**15, header))
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(client.send_for_ever(), 5.0)
