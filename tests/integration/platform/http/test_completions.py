"""/v1/completions: texts and token ids continued, the older formats of logprobs, and what is refused by name."""

from typing import Any

import pytest

from tests.integration.platform.http.http_client import Http, script

PATH = "/v1/completions"


def ask(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "prompt": prompt, **fields}


def test_a_stream_has_text_then_a_reason_then_usage_then_the_end(http: Http) -> None:
    events = http.stream(PATH, ask(script("!rate(50)", "Hel", "lo"), stream_options={"include_usage": True}))
    assert {event.event for event in events} == {""}
    assert events[-1].data == "[DONE]"
    *chunks, usage = [event.data for event in events[:-1]]
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hel", "lo", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 3
    assert {chunk["id"] for chunk in [*chunks, usage]} == {usage["id"]}
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


def test_token_ids_are_a_prompt(http: Http) -> None:
    whole = http.post(PATH, ask([*b'["x"]'])).json()
    assert whole["choices"][0]["text"] == "x"
    assert whole["usage"]["prompt_tokens"] == 5
    assert http.post(PATH, ask([[*b'["x"]']])).json()["choices"][0]["text"] == "x"
    assert http.post(PATH, ask([script("y")])).json()["choices"][0]["text"] == "y"


def test_logprobs_have_offsets_in_characters(http: Http) -> None:
    prompt = script("a", "é", [0xF0, 0x9F], [0x98, 0x80], "b")
    logprobs = http.post(PATH, ask(prompt, logprobs=1)).json()["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 3]
    assert logprobs["tokens"][:2] == ["a", "é"]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 5
    chunks = [event.data for event in http.stream(PATH, ask(prompt, logprobs=1))[:-1]]
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert [offset for one in streamed for offset in one["text_offset"]] == logprobs["text_offset"]


def test_every_choice_is_whole(http: Http) -> None:
    whole = http.post(PATH, ask(script("h", "i"), n=3)).json()
    assert [choice["text"] for choice in whole["choices"]] == ["hi"] * 3
    assert whole["usage"]["completion_tokens"] == 9


def test_a_failure_ends_the_stream_without_an_end_mark(http: Http) -> None:
    events = http.stream(PATH, ask(script("a", "!err")))
    assert events[-1].data["error"]["code"] == "engine_error"
    assert "[DONE]" not in [event.data for event in events]
    assert http.refused(PATH, ask(script("a", "!err")), 500)["response_id"].startswith("resp_")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [260]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": [1.0]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 8192}, "max_tokens"),
    ],
)
def test_what_is_not_served_is_refused_by_name(http: Http, fields: dict[str, Any], param: str) -> None:
    assert http.refused(PATH, {**ask("x"), **fields})["param"] == param  # B43


def test_neutral_values_of_refused_fields_are_served(http: Http) -> None:
    answer = http.post(PATH, ask(script("a"), echo=False, suffix=None, best_of=1, n=1, user="me", foo=1))
    assert answer.json()["choices"][0]["text"] == "a"
