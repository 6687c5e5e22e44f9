import asyncio
import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from headrace_kit.health import Health
from headrace_kit.listeners import GrpcListener, HttpListener, StartError


async def test_http_requests_in_flight_finish_when_the_port_closes() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> PlainTextResponse:
        begun.set()
        await release.wait()
        return PlainTextResponse("whole")

    listener = HttpListener("127.0.0.1:0", Starlette(routes=[Route("/", slow)]))
    await listener.start()
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        request = asyncio.create_task(client.get(f"http://{listener.address}/"))
        await begun.wait()
        stopping = asyncio.create_task(listener.stop(10))
        async with asyncio.timeout(10):
            while not await refused(listener.address):
                pass
        release.set()
        assert (await request).text == "whole"
    await stopping


async def refused(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return True
    writer.close()
    await writer.wait_closed()
    return False


async def test_a_request_that_never_ends_is_cut_after_the_grace() -> None:
    begun = asyncio.Event()

    async def endless(_: Request) -> PlainTextResponse:
        begun.set()
        await asyncio.Event().wait()
        return PlainTextResponse("")

    listener = HttpListener("127.0.0.1:0", Starlette(routes=[Route("/", endless)]))
    await listener.start()
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        request = asyncio.create_task(client.get(f"http://{listener.address}/"))
        await begun.wait()
        await asyncio.wait_for(listener.stop(0.05), 5)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


@pytest.mark.parametrize("listen", ["", "8080", ":8080", "host", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
async def test_a_malformed_address_is_named(listen: str) -> None:
    with pytest.raises(StartError, match="is not an address of the form host:port") as caught:
        GrpcListener(listen, Health(), token=None)
    assert caught.value.code == 2


async def test_two_listeners_cannot_share_a_port() -> None:
    first = GrpcListener("127.0.0.1:0", Health(), token=None)
    await first.start()
    for second in (lambda: GrpcListener(first.address, Health(), token=None),
                   lambda: HttpListener(first.address, None)):
        with pytest.raises(StartError, match=first.address) as caught:
            second()
        assert caught.value.code == 3
    await first.stop(0)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_an_ipv6_address_keeps_its_brackets() -> None:
    try:
        listener = GrpcListener("[::1]:0", Health(), token=None)
    except StartError:
        pytest.skip("this host has no IPv6 loopback")
    await listener.start()
    assert listener.address.startswith("[::1]:") and not listener.address.endswith(":0")
    await listener.stop(0)
