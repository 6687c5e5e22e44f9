"""Clients that frame, close and fill their connections in their own way get their answer all the same."""

import socket

import pytest

from tests.integration.platform.http.http_client import parse, script, user
from tests.integration.platform.http.metrics import metric
from tests.integration.platform.http.raw_http import RawHttp
from tests.integration.platform.running_platform import Platform, wait_until

CHAT = "/v1/chat/completions"
ENDLESS = {"model": "scripted", "messages": user(script("a", "!stall(60)"))}


def test_http_1_0_streams_without_chunks(platform: Platform) -> None:
    body = {"model": "scripted", "messages": user(script("Hel", "lo")), "stream": True}
    with RawHttp(platform) as client:
        client.post(CHAT, body, version="1.0")
        head, text = client.rest()
    assert "transfer-encoding" not in head and "connection: close" in head
    events = list(parse(text))
    assert "".join(event.data["choices"][0]["delta"].get("content", "") for event in events[:-1]) == "Hello"
    assert events[-1].data == "[DONE]"


def test_http_1_0_gets_a_whole_answer(platform: Platform) -> None:
    with RawHttp(platform) as client:
        client.post(CHAT, {"model": "scripted", "messages": user("hi")}, version="1.0")
        head, text = client.rest()
    assert f"content-length: {len(text)}" in head and '"content":"hi"' in text


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_closed_its_direction_is_told_that_this_ended_its_response(
    platform: Platform, stream: bool
) -> None:
    with RawHttp(platform) as client:
        client.post(CHAT, {**ENDLESS, "stream": stream})
        wait_until(lambda: metric(platform, "responses_open") == 1, "it runs")
        if stream:
            client.socket.recv(1, socket.MSG_PEEK)  # its head is out: before that a status could still tell
        client.close_sending()
        head, text = client.rest()
    assert head.startswith("HTTP/1.1 200" if stream else "HTTP/1.1 499")
    assert '"code":"disconnect"' in text and "[DONE]" not in text
    wait_until(lambda: metric(platform, "responses_open") == 0, "it ended")


@pytest.mark.parametrize("body", [b"{}", b'{"model":"nobody","messages":[{"role":"user","content":"x"}]}'])
def test_a_refusal_reaches_a_client_that_closed_its_direction(platform: Platform, body: bytes) -> None:
    with RawHttp(platform) as client:
        client.post(CHAT, body)
        client.close_sending()
        head, text = client.rest()
    assert head.startswith(("HTTP/1.1 400", "HTTP/1.1 404")) and '"error"' in text


@pytest.mark.parametrize("header", ["connection: close", "connection: keep-alive"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_body_that_is_too_large_is_answered_whenever_it_is_read(
    platform: Platform, header: str, version: str
) -> None:
    with RawHttp(platform) as client:
        client.post(CHAT, b" " * 12_000_000, header, version=version)
        client.close_sending()
        head, text = client.rest()
    assert " 413 " in head and '"code":"too_large"' in text


def test_a_head_that_is_too_large_is_answered_whenever_it_is_read(platform: Platform) -> None:
    with RawHttp(platform) as client:
        client.post(CHAT, b" " * 1_000_000, "a: " + "x" * 2_000_000)
        assert client.rest()[0].startswith("HTTP/1.1 431")
