"""OpenAI's own client, as people have it: synchronous, asynchronous, its helpers for streams, and its errors."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.integration.platform.http.http_client import call_script, script, user
from tests.integration.platform.running_platform import Platform

CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
TOOLS: Any = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}]
THINKING = script("<think>", "hm", "</think>", "Hel", "lo")


@pytest.fixture(scope="module")
def client(platform: Platform) -> Iterator[Any]:
    with openai.DefaultHttpxClient(trust_env=False) as transport:
        yield openai.OpenAI(
            base_url=f"{platform.http}/v1", api_key=platform.api_key, http_client=transport, max_retries=0
        )


def test_chat(client: Any) -> None:
    answer = client.chat.completions.create(model="scripted", messages=user(script("Hel", "lo")), n=2)
    assert [choice.message.content for choice in answer.choices] == ["Hello", "Hello"]
    assert answer.usage.completion_tokens == 6
    raw = client.chat.completions.with_raw_response.create(model="scripted", messages=user("hi"))
    assert raw.headers["x-headrace-response-id"] == raw.parse().id
    assert raw.headers["x-request-id"]


def test_the_helper_for_chat_streams(client: Any) -> None:
    with client.chat.completions.stream(
        model="scripted", messages=user(script("Hel", "lo")), stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds and kinds[-1] != "content.delta"
    assert final.choices[0].message.content == "Hello"
    assert final.choices[0].finish_reason == "stop"
    assert final.usage.completion_tokens == 3


def test_a_call_in_chat(client: Any) -> None:
    asked: Any = {"model": "scripted", "messages": user(call_script('{"city": "Paris"}')), "tools": CHAT_TOOLS}
    whole = client.chat.completions.create(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        streamed = stream.get_final_completion().choices[0]
    assert "".join(pieces) == '{"city": "Paris"}' and len(pieces) > 1
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls[0].function.name == "weather"
        assert choice.message.tool_calls[0].function.arguments == '{"city": "Paris"}'
        assert not choice.message.content
    history = [
        *asked["messages"],
        {"role": "assistant", "content": None, "tool_calls": [whole.message.tool_calls[0].model_dump()]},
        {"role": "tool", "tool_call_id": whole.message.tool_calls[0].id, "content": "sunny"},
        *user(script("ok")),
    ]
    answer = client.chat.completions.create(model="scripted", messages=history, tools=CHAT_TOOLS)
    assert answer.choices[0].message.content == "ok"


@pytest.mark.parametrize(("limit", "reason"), [(None, "stop"), (50, "length")])
def test_a_cut_call_is_never_whole(client: Any, limit: int | None, reason: str) -> None:
    asked: Any = {
        "model": "scripted",
        "messages": user(call_script('{"city": "Paris"}', cut=55)),
        "tools": CHAT_TOOLS,
        "max_tokens": limit,
    }
    assert client.chat.completions.create(**asked).choices[0].finish_reason == reason
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == [reason]


def test_without_tools_a_call_is_text(client: Any) -> None:
    asked: Any = {"model": "scripted", "messages": user(call_script("{}"))}
    for extra in ({}, {"tools": CHAT_TOOLS, "tool_choice": "none"}):
        choice = client.chat.completions.create(**asked, **extra).choices[0]
        assert choice.message.content.startswith("<tool_call>")
        assert choice.finish_reason == "stop" and not choice.message.tool_calls


def test_thinking_in_chat(client: Any) -> None:
    message = client.chat.completions.create(model="scripted", messages=user(THINKING)).choices[0].message
    assert (message.content, message.reasoning_content) == ("Hello", "hm")
    chunks = list(client.chat.completions.create(model="scripted", messages=user(THINKING), stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hm"
    assert "".join(delta.content or "" for delta in deltas) == "Hello"


def test_completions(client: Any) -> None:
    assert client.completions.create(model="scripted", prompt=script("a", "b")).choices[0].text == "ab"
    chunks = list(client.completions.create(model="scripted", prompt=script("a", "b"), stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "ab"


def test_responses(client: Any) -> None:
    answer = client.responses.create(model="scripted", input=script("Hel", "lo"))
    assert answer.output_text == "Hello" and answer.status == "completed"
    with client.responses.stream(model="scripted", input=THINKING) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert final.output_text == "Hello"
    with client.responses.stream(model="scripted", input=call_script('{"a": 1}'), tools=TOOLS) as stream:
        final = stream.get_final_response()
    assert (final.output[0].name, final.output[0].arguments) == ("weather", '{"a": 1}')


def test_a_failure_raises_in_the_client(client: Any) -> None:
    asked: Any = {"model": "scripted", "messages": user(script("a", "!err"))}
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(**asked)
    with pytest.raises(openai.APIError) as broken:
        list(client.chat.completions.create(**asked, stream=True))
    assert "engine" in broken.value.message
    with pytest.raises(openai.APIError):
        list(client.completions.create(model="scripted", prompt=script("a", "!err"), stream=True))
    events = list(client.responses.create(model="scripted", input=script("a", "!err"), stream=True))
    assert events[-1].type == "response.failed"


def test_models_and_errors(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="scripted", messages=user("x"), max_tokens=0)
    assert refused.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError, match="embeddings are not served"):
        client.embeddings.create(model="scripted", input="x")


async def test_the_asynchronous_client(platform: Platform) -> None:
    async with openai.DefaultAsyncHttpxClient(trust_env=False) as transport:
        client: Any = openai.AsyncOpenAI(
            base_url=f"{platform.http}/v1", api_key=platform.api_key, http_client=transport, max_retries=0
        )
        stream = await client.chat.completions.create(model="scripted", messages=user(script("Hel", "lo")), stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Hello"
        async with client.responses.stream(model="scripted", input=script("Hel", "lo")) as events:
            assert (await events.get_final_response()).output_text == "Hello"
