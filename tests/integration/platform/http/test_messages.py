"""/v1/messages: Anthropic's events in Anthropic's order, its errors, and its counting."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.integration.platform.http.http_client import Http, call_script, script, user
from tests.integration.platform.running_platform import Platform

PATH = "/v1/messages"
TOOLS: Any = [{"name": "weather", "input_schema": {"type": "object"}}]


@pytest.fixture(scope="module")
def client(platform: Platform) -> Iterator[Any]:
    transport = anthropic.DefaultHttpxClient(trust_env=False)
    with transport:
        yield anthropic.Anthropic(
            base_url=platform.http, api_key=platform.api_key, http_client=transport, max_retries=0
        )


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "max_tokens": 200, "messages": user(text), **fields}


def test_the_events_of_a_stream(http: Http) -> None:
    events = http.stream(PATH, ask(script("!rate(50)", "Hel", "lo")))
    assert [event.event for event in events] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert all(event.data["type"] == event.event for event in events)
    assert events[-2].data["delta"]["stop_reason"] == "end_turn"
    assert events[-2].data["usage"]["output_tokens"] == 3


def test_a_failure_is_an_error_event_and_no_stop(http: Http) -> None:
    events = http.stream(PATH, ask(script("a", "!err")))
    assert events[-1].event == "error"
    assert events[-1].data["error"]["code"] == "engine_error"
    assert "message_stop" not in [event.event for event in events]
    assert http.refused(PATH, ask(script("a", "!err")), 500)["type"] == "api_error"


def test_the_client_streams(client: Any) -> None:
    body = ask(script("<think>", "hm", "</think>", "Hel", "lo"), system="be brief")
    with client.messages.stream(**body) as stream:
        assert "".join(stream.text_stream) == "Hello"
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == 6


def test_the_client_calls_tools(client: Any) -> None:
    body = ask(call_script('{"city": "Paris"}'), tools=TOOLS)
    with client.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    for message in (streamed, client.messages.create(**body)):
        assert message.stop_reason == "tool_use"
        call = message.content[0]
        assert call.type == "tool_use" and call.name == "weather" and call.input == {"city": "Paris"}
    history = [
        *user("A"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "X"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
        *user(script("ok")),
    ]
    answer: Any = client.messages.create(**{**ask(""), "messages": history})
    assert answer.content[0].text == "ok"


def test_a_limit_is_told(client: Any) -> None:
    answer: Any = client.messages.create(**{**ask(script(*"abcdef")), "max_tokens": 3})
    assert (answer.stop_reason, answer.content[0].text) == ("max_tokens", "abc")


def test_the_stop_sequence_that_matched_is_told(client: Any) -> None:
    body = {**ask(script("Hi", "\n", "\nUs", "er:", "more")), "stop_sequences": ["ZZ", "\n\nUser:"]}
    with client.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    for message in (streamed, client.messages.create(**body)):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "\n\nUser:")
        assert message.content[0].text == "Hi"


def test_a_stop_sequence_that_did_not_match_is_not_told(client: Any) -> None:
    for text, reason in ((script("Hi"), "end_turn"), (script(*"abcdef"), "max_tokens")):
        message = client.messages.create(**{**ask(text), "max_tokens": 3, "stop_sequences": ["ZZ"]})
        assert (message.stop_reason, message.stop_sequence) == (reason, None)


def test_the_client_counts(client: Any) -> None:
    assert (
        client.messages.count_tokens(model="scripted", messages=[{"role": "user", "content": "hi"}]).input_tokens == 22
    )


def test_the_client_knows_our_errors(client: Any, platform: Platform) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**{**ask("x"), "model": "nobody"})
    assert missing.value.request_id
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**ask("x"), "max_tokens": 0})
    with anthropic.DefaultHttpxClient(trust_env=False) as transport:
        stranger: Any = anthropic.Anthropic(base_url=platform.http, api_key="hr_no_key", http_client=transport)
        with pytest.raises(anthropic.AuthenticationError):
            stranger.messages.create(**ask("x"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"container": "c"}, "container"),
        ({"top_k": 0.5}, "top_k"),
    ],
)
def test_what_is_not_served_is_refused_by_name(http: Http, fields: dict[str, Any], param: str) -> None:
    assert http.refused(PATH, {**ask("x"), **fields})["param"] == param


def test_other_paths_say_what_they_are(http: Http) -> None:
    answer = http.client.get("/v1/messages/batches")
    assert answer.status_code == 404
    assert answer.json()["type"] == "error" and "batches" in answer.json()["error"]["message"]
