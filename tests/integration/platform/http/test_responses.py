"""/v1/responses: the whole lifecycle of events, numbered without gaps, and one ending."""

from typing import Any

import pytest

from tests.integration.platform.http.http_client import Http, Sse, call_script, script

PATH = "/v1/responses"
TOOLS = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]


def ask(text: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": text, **fields}


def names(events: list[Sse]) -> list[str]:
    """Names in order, repeats of one kind joined; every event is checked to be what its line says, and numbered."""
    assert [event.data["sequence_number"] for event in events] == list(range(len(events)))
    assert all(event.event == event.data["type"] for event in events)
    told = [event.event.removeprefix("response.") for event in events]
    return [name for at, name in enumerate(told) if at == 0 or told[at - 1] != name]


def test_the_lifecycle_of_a_text(http: Http) -> None:
    events = http.stream(PATH, ask(script("!rate(50)", "Hel", "lo")))
    assert names(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    deltas = [event.data["delta"] for event in events if event.event == "response.output_text.delta"]
    assert deltas == ["Hel", "lo"]
    response = events[-1].data["response"]
    assert response["status"] == "completed" and response["store"] is False
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert response["usage"]["output_tokens"] == 3
    assert response["id"] == events[0].data["response"]["id"]


def test_a_limit_is_incomplete_with_everything_closed(http: Http) -> None:
    events = http.stream(PATH, ask(script(*"abcdef"), max_output_tokens=3))
    assert names(events)[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    response = events[-1].data["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert http.post(PATH, ask(script(*"abcdef"), max_output_tokens=3)).json()["status"] == "incomplete"


def test_a_failure_is_one_event_and_nothing_else(http: Http) -> None:
    events = http.stream(PATH, ask(script("a", "!err")))
    assert names(events)[-1] == "failed"
    assert [event.event for event in events].count("response.failed") == 1
    assert not {"error", "response.completed", "response.output_item.done"} & {event.event for event in events}
    response = events[-1].data["response"]
    assert response["status"] == "failed"
    assert response["error"]["reason"] == "engine_error"
    assert response["output"][0]["status"] == "incomplete"
    assert http.refused(PATH, ask(script("a", "!err")), 500)["code"] == "engine_error"


def test_nothing_generated_is_still_a_message(http: Http) -> None:
    events = http.stream(PATH, ask(script()))
    assert "output_text.delta" not in names(events)
    assert events[-1].data["response"]["output"][0]["content"][0]["text"] == ""


def test_thoughts_are_an_item_of_their_own(http: Http) -> None:
    text = script("<think>", "hm", "</think>", "yes")
    response = http.stream(PATH, ask(text))[-1].data["response"]
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    whole = http.post(PATH, ask(text)).json()
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message"]
    assert whole["usage"] == response["usage"] | {"input_tokens_details": whole["usage"]["input_tokens_details"]}


def test_a_call_is_streamed_and_whole(http: Http) -> None:
    events = http.stream(PATH, ask(call_script('{"city": "Paris"}'), tools=TOOLS))
    assert names(events) == [
        "created", "in_progress", "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    pieces = [event.data["delta"] for event in events if event.event.endswith("arguments.delta")]
    assert "".join(pieces) == '{"city": "Paris"}'
    item = events[-1].data["response"]["output"][0]
    assert (item["name"], item["arguments"], item["status"]) == ("weather", '{"city": "Paris"}', "completed")
    assert item["call_id"].startswith("call_")


@pytest.mark.parametrize("fields", [{}, {"max_output_tokens": 50}])
def test_a_cut_call_is_never_whole(http: Http, fields: dict[str, Any]) -> None:
    """Whether the limit cut it, or the model itself."""
    body = ask(call_script('{"city": "Paris"}', cut=55), tools=TOOLS, **fields)
    for response in (http.stream(PATH, body)[-1].data["response"], http.post(PATH, body).json()):
        assert response["output"][-1]["type"] == "function_call"
        assert response["output"][-1]["status"] == "incomplete"


def test_a_conversation_of_items(http: Http) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "A"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "message", "role": "user", "content": script("ok")},
    ]
    whole = http.post(PATH, ask(items, instructions="be brief")).json()
    assert whole["output"][0]["content"][0]["text"] == "ok"
    assert whole["instructions"] == "be brief"
    counted = http.post("/v1/responses/input_tokens", ask(items, instructions="be brief")).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": whole["usage"]["input_tokens"]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"type": "message", "role": "x", "content": ""}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"include": ["everything"]}, "include[0]"),
        ({"temperature": "warm"}, "temperature"),
    ],
)
def test_what_is_not_served_is_refused_by_name(http: Http, fields: dict[str, Any], param: str) -> None:
    assert http.refused(PATH, {**ask("x"), **fields})["param"] == param


def test_nothing_is_stored(http: Http) -> None:
    for method, path in (
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
    ):
        answer = http.client.request(method, path)
        assert answer.status_code == 404 and "not stored" in answer.json()["error"]["message"]
