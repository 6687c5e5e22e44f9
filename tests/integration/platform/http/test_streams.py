"""The field's own faults of streaming, over HTTP and gRPC, with the values of the cases (B numbers)."""

import concurrent.futures
import socket
from typing import Any

import httpx
import pytest

from headrace_cli.client import Client
from tests.integration.platform.http.http_client import Http, parse, script, user
from tests.integration.platform.http.metrics import metric
from tests.integration.platform.http.raw_http import RawHttp
from tests.integration.platform.running_platform import Platform, wait_until

CHAT = "/v1/chat/completions"


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": user(text), **fields}


def content(chunk: Any) -> str:
    return "".join(choice["delta"].get("content", "") for choice in chunk["choices"])


def test_an_error_is_one_terminal_and_counted_once(http: Http, platform: Platform) -> None:
    failed = 'responses_total{model="scripted",outcome="failed"}'
    before = metric(platform, failed)
    events = [event.data for event in http.stream(CHAT, ask(script("Hel", "lo", "!err")))]  # B01
    assert [data for data in events if "error" in data] == [events[-1]]
    assert "".join(content(data) for data in events[:-1]) == "Hello"
    assert not [data for data in events[:-1] if data["choices"][0]["finish_reason"]]
    wait_until(lambda: metric(platform, failed) == before + 1, "it is counted")
    log = platform.headrace("logs", "gateway").stdout
    response_id = events[-1]["error"]["response_id"]
    lines = [line for line in log.splitlines() if response_id in line and '"level": "error"' in line]
    assert len(lines) == 1


def test_usage_is_known_whether_or_not_it_is_shown(http: Http, platform: Platform) -> None:
    names = [f'tokens_total{{kind="{kind}",model="scripted"}}' for kind in ("prompt", "output")]
    before = [metric(platform, name) for name in names]
    prompt = http.post("/v1/responses/input_tokens", {"model": "scripted", "input": script(*"abcdefgh")}).json()
    events = http.stream(CHAT, ask(script(*"abcdefgh")))  # B06: eight texts and the end token
    assert not [event for event in events if event.data != "[DONE]" and event.data.get("usage")]
    after = [metric(platform, name) for name in names]
    assert [one - other for one, other in zip(after, before, strict=True)] == [prompt["input_tokens"], 9]


@pytest.mark.parametrize("stream", [False, True])
def test_usage_is_neither_cumulative_twice_nor_of_one_choice(http: Http, stream: bool) -> None:
    def usage(body: dict[str, Any]) -> dict[str, Any]:  # B07
        if stream:
            events = http.stream(CHAT, {**body, "stream_options": {"include_usage": True}})
            found: dict[str, Any] = events[-2].data["usage"]
        else:
            found = http.post(CHAT, body).json()["usage"]
        return found

    two = usage(ask("hi", n=2))
    assert (two["prompt_tokens"], two["completion_tokens"], two["total_tokens"]) == (22, 6, 28)
    assert usage(ask(script("!repeat(300,a)"), max_tokens=197))["completion_tokens"] == 197


@pytest.mark.parametrize("stop", ["ZZZZZZZZ", "oops", "II"])
def test_a_stop_that_never_comes_delays_nothing(http: Http, stop: str) -> None:
    text = script("!rate(20)", "I ", "am ", "ok")  # B15
    texts = [content(event.data) for event in http.stream(CHAT, ask(text, stop=[stop]))[:-1]]
    assert texts == ["", "I ", "am ", "ok", ""]  # the role's, three, and the reason's


def test_a_decoder_fault_is_its_own_responses(http: Http) -> None:
    def run(text: str) -> list[Any]:
        return [event.data for event in http.stream(CHAT, ask(text))]

    good = script("!rate(50)", *"abcdef")  # B11
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        first, bad, third = pool.map(run, [good, script("!rate(50)", "a", "b", 300, "c"), good])
    assert bad[-1]["error"]["code"] == "decode_error"
    assert "".join(content(data) for data in bad[:-1]) == "ab"
    for neighbour in (first, third):
        assert neighbour[-1] == "[DONE]"
        assert "".join(content(data) for data in neighbour[:-1]) == "abcdef"


def test_every_chunk_of_many_requests_is_well_formed(http: Http) -> None:
    bodies = [
        ask(script("<think>" if number % 5 == 0 else "x", *"ab", "</think>", [0xF0, 0x9F], [0x98, 0x80], "!"),
            n=1 + number % 3, logprobs=number % 2 == 0, max_tokens=3 + number % 6)
        for number in range(50)
    ]  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        streams = list(pool.map(lambda body: http.stream(CHAT, body), bodies))  # B22
    for body, events in zip(bodies, streams, strict=True):
        chunks = [event.data for event in events[:-1]]
        assert events[-1].data == "[DONE]"
        assert len({(chunk["id"], chunk["model"], chunk["created"], chunk["object"]) for chunk in chunks}) == 1
        for index in range(body["n"]):
            choices = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
            assert [one["delta"].get("role") for one in choices] == ["assistant"] + [None] * (len(choices) - 1)
            assert all(isinstance(one["delta"].get("content", ""), str) for one in choices)
            assert all(one["delta"].get("content") != "" for one in choices[1:])
            assert [one["finish_reason"] for one in choices][:-1] == [None] * (len(choices) - 1)


def leave_http_stream(platform: Platform, n: int = 1) -> None:
    body = ask(LONG, stream=True, n=n)
    headers = {"authorization": f"Bearer {platform.api_key}"}
    with (
        httpx.Client(base_url=platform.http, trust_env=False, timeout=60, headers=headers) as client,
        client.stream("POST", CHAT, json=body) as answer,
    ):
        text = ""
        for piece in answer.iter_text():
            text += piece
            if sum(bool(content(event.data)) for event in parse(text.rpartition("\n\n")[0])) >= 3:
                return


def leave_http_whole(platform: Platform) -> None:
    with RawHttp(platform) as raw:
        raw.post(CHAT, ask(LONG))
        wait_until(lambda: platform.load().num_running == 1, "it runs")


def leave_many_http_choices(platform: Platform) -> None:
    leave_http_stream(platform, n=3)


def leave_grpc(platform: Platform) -> None:
    with Client(platform.grpc, api_key=platform.api_key) as client:
        stream = client.generate("scripted", user(LONG))
        for event in stream:
            if event.sequence_number == 3:
                break
        stream.__exit__()


def leave_many_choices(platform: Platform) -> None:
    with Client(platform.grpc, api_key=platform.api_key) as client:
        stream = client.generate("scripted", user(LONG), n=3, max_output_tokens=1000, ignore_eos=True)
        for event in stream:
            if event.sequence_number == 5:
                break
        stream.__exit__()


LONG = script("!rate(50)", "!repeat(1000,x)")


LEAVING = [leave_http_stream, leave_http_whole, leave_grpc, leave_many_choices, leave_many_http_choices]


@pytest.mark.parametrize("leave", LEAVING)
def test_a_client_that_left_holds_nothing(platform: Platform, leave: Any) -> None:
    cancelled = 'responses_total{model="scripted",outcome="cancelled"}'
    before = metric(platform, cancelled)
    leave(platform)  # B23, B25
    wait_until(lambda: metric(platform, cancelled) == before + 1, "the response ends cancelled")
    wait_until(lambda: platform.load().num_running == 0, "nothing runs at the worker")
    load = platform.load()
    assert (load.num_promised_pages, load.num_held_pages) == (0, 0)
    assert metric(platform, "responses_open") == 0


def test_a_client_that_does_not_read_delays_nobody(http: Http, platform: Platform) -> None:
    """It never reads; a neighbour's whole stream fits into the time that its own takes."""
    host, _, port = platform.http.removeprefix("http://").rpartition(":")
    text = script("!rate(2000)", "!repeat(8000,xxxxxxxx)")
    body = httpx.Request("POST", "http://x", json=ask(text, stream=True, max_tokens=8000)).content
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {platform.api_key}\r\n"
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((host, int(port)))
        deaf.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: metric(platform, "responses_open") == 1, "it runs")
        events = http.stream(CHAT, ask(script(*"abcdef")))
        assert "".join(content(event.data) for event in events[:-1]) == "abcdef"
        assert metric(platform, "responses_open") == 1
        wait_until(lambda: metric(platform, "responses_open") == 0, "decoding never waited for it", 15.0)
    completed = 'responses_total{model="scripted",outcome="incomplete"}'
    assert metric(platform, completed) >= 1
