import asyncio
import shutil
import socket
import subprocess
from pathlib import Path

import grpc
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from headrace_kit.channels import Tls
from headrace_kit.health import Health
from headrace_kit.listeners import GrpcListener, HttpListener, StartError
from tests.unit.kit.fakes import channel


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
    except (ConnectionRefusedError, ConnectionResetError):  # the listening socket closes while we connect
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


def make_certificates(folder: Path, authority: str, name: str) -> Tls:
    """An authority, and a certificate for localhost that it signed."""
    ca, key, request, cert = (folder / f"{part}.pem" for part in (authority, f"{name}-key", f"{name}-csr", name))
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    alt = folder / "alt"
    alt.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for command in (
        [*new, "-x509", "-subj", f"/CN={authority}", "-keyout", f"{ca}.key", "-out", ca],
        [*new, "-subj", f"/CN={name}", "-keyout", key, "-out", request],
        [
            "openssl",
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            ca,
            "-CAkey",
            f"{ca}.key",
            "-CAcreateserial",
            "-extfile",
            alt,
            "-out",
            cert,
        ],
    ):
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return Tls(ca, cert, key)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
async def test_mutual_tls_admits_only_peers_of_the_same_authority(tmp_path: Path) -> None:
    ours = make_certificates(tmp_path, "authority", "peer")
    foreign = make_certificates(tmp_path, "elsewhere", "stranger")
    listener = GrpcListener("127.0.0.1:0", Health(), token=None, tls=ours)
    await listener.start()
    check = "/grpc.health.v1.Health/Check"
    async with channel(listener.address, tls=ours) as opened:
        assert await opened.unary_unary(check)(b"", timeout=10) == b"\x08\x01"
    for tls in (None, foreign, Tls(ours.ca, foreign.cert, foreign.key)):
        async with channel(listener.address, tls=tls) as opened:
            with pytest.raises(grpc.aio.AioRpcError):
                await opened.unary_unary(check)(b"", timeout=2)
    await listener.stop(0)


@pytest.mark.parametrize("listen", ["", "8080", ":8080", "host", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
async def test_a_malformed_address_is_named(listen: str) -> None:
    with pytest.raises(StartError, match="is not an address of the form host:port") as caught:
        GrpcListener(listen, Health(), token=None)
    assert caught.value.code == 2


async def test_two_listeners_cannot_share_a_port() -> None:
    first = GrpcListener("127.0.0.1:0", Health(), token=None)
    await first.start()
    for second in (
        lambda: GrpcListener(first.address, Health(), token=None),
        lambda: HttpListener(first.address, None),
    ):
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
