"""What a stream becomes, whole, cut or refused."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace_bench.outcome import Outcome
from headrace_bench.sse import EventReader
from headrace_bench.target import Ask, Target

ASK = Ask("m", "hello", 5, extra={"ignore_eos": True})


def event(**what: Any) -> bytes:
    return b"data: " + json.dumps(what).encode() + b"\n\n"


def delta(text: str, finish_reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}])


USAGE = event(
    choices=[], usage={"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
)
WHOLE = (b": keep-alive\n\n", delta(""), delta("a"), delta("b", "length"), USAGE, b"data: [DONE]\n\n")


async def run(*body: bytes, status: int = 200) -> Outcome:
    def answer(request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        assert sent["messages"] == [{"role": "user", "content": "hello"}]
        assert sent["stream"] and sent["ignore_eos"] and sent["max_tokens"] == 5
        return httpx.Response(status, content=b"".join(body))

    outcome = Outcome(0, "m", 0.0)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        await Target(client, "http://x/v1").run(ASK, outcome, 0.0)
    return outcome


async def test_a_whole_stream() -> None:
    one = await run(*WHOLE)
    assert (one.error, one.finish_reason, len(one.texts_s)) == ("", "length", 2)
    assert (one.num_prompt, one.num_cached, one.num_output) == (7, 4, 2)


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (WHOLE[:-1], 200, "without [DONE]"),
        ((delta("a"), event(error={"message": "worker_lost"}), b"data: [DONE]\n\n"), 200, "worker_lost"),
        ((b'{"error": {"message": "slow down"}}',), 429, "HTTP 429: slow down"),
        ((b"<html>",), 502, "HTTP 502: <html>"),
        ((b"data: {nonsense\n\n",), 200, "JSONDecodeError"),
    ],
)
async def test_what_goes_wrong_is_said(body: tuple[bytes, ...], status: int, error: str) -> None:
    assert error in (await run(*body, status=status)).error


async def test_without_usage_the_events_are_counted() -> None:
    assert (await run(delta("a"), delta("b"), b"data: [DONE]\n\n")).num_output == 2


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_do_not_depend_on_how_bytes_are_cut(size: int) -> None:
    data, reader = b"".join(WHOLE), EventReader()

    def cut() -> Iterator[bytes]:
        for start in range(0, len(data), size):
            yield from reader.feed(data[start : start + size])

    assert [item[:7] for item in cut()][-1] == b"[DONE]" and reader.feed(b"") is not None


def test_a_field_of_the_person_stands_in_place_of_ours() -> None:
    said = [{"role": "user", "content": "mine"}]
    assert Ask("m", "hello", 5, extra={"messages": said}).body()["messages"] == said
    assert Ask("m", "hello", 5, "completions", {"prompt": "mine"}).body()["prompt"] == "mine"
    assert Ask("m", "hello", 5).body()["messages"][0]["content"] == "hello"
