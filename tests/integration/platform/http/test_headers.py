"""Headers, limits and lineage over HTTP, against a running platform."""

import gzip
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.platform.http.http_client import Http, parse, script, user
from tests.integration.platform.http.metrics import metric
from tests.integration.platform.running_platform import Platform

CHAT = "/v1/chat/completions"
PATHS: dict[str, dict[str, Any]] = {
    CHAT: {"model": "scripted", "messages": user("hi")},
    "/v1/completions": {"model": "scripted", "prompt": "hi"},
    "/v1/responses": {"model": "scripted", "input": "hi"},
    "/v1/messages": {"model": "scripted", "max_tokens": 9, "messages": user("hi")},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_every_answer_has_its_ids(http: Http, path: str, stream: bool) -> None:
    answer = http.post(path, {**PATHS[path], "stream": stream}, x_request_id="mine")
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == "mine"
    assert answer.headers["x-headrace-response-id"].startswith("resp_")
    assert int(answer.headers["x-headrace-snapshot"]) > 0
    refused = http.post(path, {**PATHS[path], "model": "nobody", "stream": stream}, x_request_id="mine")
    assert refused.status_code == 404
    assert refused.headers["x-request-id"] == "mine"
    assert "x-headrace-response-id" not in refused.headers


def test_two_streams_of_one_caller_id_are_two(http: Http) -> None:
    body = {**PATHS[CHAT], "messages": user(script("!rate(20)", *"abcd")), "stream": True}
    with (
        http.client.stream("POST", CHAT, json=body, headers={"x-request-id": "same"}) as first,
        http.client.stream("POST", CHAT, json=body, headers={"x-request-id": "same"}) as second,
    ):
        texts = []
        for answer in (first, second):
            events = list(parse(answer.read().decode()))
            texts.append("".join(event.data["choices"][0]["delta"].get("content", "") for event in events[:-1]))
        ids = {answer.headers["x-headrace-response-id"] for answer in (first, second)}
    assert texts == ["abcd", "abcd"] and len(ids) == 2  # B44


@pytest.mark.parametrize("given", ["header", "metadata"])
def test_a_retry_names_what_it_replaces(http: Http, platform: Platform, given: str) -> None:
    failed = http.post(CHAT, {**PATHS[CHAT], "messages": user(script("a", "!err"))})
    replaced = failed.json()["error"]["response_id"]
    headers = {"x_headrace_retry_of": replaced} if given == "header" else {}
    metadata = {"retry_of": replaced} if given == "metadata" else None
    answer = http.post(CHAT, {**PATHS[CHAT], "metadata": metadata}, **headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-headrace-retry-of"] == replaced
    unknown = http.post(CHAT, PATHS[CHAT], x_headrace_retry_of="resp_never")
    assert unknown.status_code == 400 and unknown.json()["error"]["code"] == "invalid_retry_of"
    completed = http.post(CHAT, PATHS[CHAT], x_headrace_retry_of=answer.json()["id"])
    assert completed.json()["error"]["code"] == "invalid_retry_of"


def test_fields_without_effect_are_counted(http: Http, platform: Platform) -> None:
    advisory, unknown = (
        'http_fields_ignored_total{api="chat",field="user"}',
        ('http_fields_ignored_total{api="chat",field="unknown"}'),
    )
    before = metric(platform, advisory), metric(platform, unknown)
    body = {**PATHS[CHAT], "user": "me", "foo": 1, "bar": {}, "service_tier": "auto"}
    assert http.post(CHAT, body).status_code == 200
    assert (metric(platform, advisory), metric(platform, unknown)) == (before[0] + 1, before[1] + 2)


def test_a_deadline_in_a_header_ends_the_stream(http: Http) -> None:
    body = {**PATHS[CHAT], "messages": user(script("a", "!stall(30)")), "stream": True}
    answer = http.post(CHAT, body, x_headrace_deadline_ms="800")
    events = list(parse(answer.text))
    assert events[-1].data["error"]["code"] == "deadline"
    whole = http.post(CHAT, {**body, "stream": False}, x_headrace_deadline_ms="800")
    assert whole.status_code == 504


def test_what_is_compressed_is_refused(http: Http) -> None:
    body = gzip.compress(b'{"model": "scripted"}')
    answer = http.client.post(CHAT, content=body, headers={"content-encoding": "gzip"})
    assert answer.status_code == 400 and "gzip" in answer.json()["error"]["message"]


def test_a_large_head_is_431(http: Http) -> None:
    answer = http.client.get("/v1/models", headers={"x-request-id": "m" * 40_000})
    assert answer.status_code == 431
    assert http.client.get("/v1/models").status_code == 200


def test_a_large_body_is_413_whether_or_not_it_says_so(http: Http) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 65536

    assert http.client.post(CHAT, content=b" " * 5_000_000).status_code == 413
    assert http.client.post(CHAT, content=parts()).status_code == 413


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/moderations", "/v1/audio/speech", "/v1/files", "/v1/batches"])
def test_other_known_paths_say_what_they_are(http: Http, path: str) -> None:
    answer = http.client.post(path, json={})
    assert answer.status_code == 404
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == "not_found" and "not served" in error["message"]


def test_a_wrong_method_says_which_is_right(http: Http) -> None:
    answer = http.client.get(CHAT)
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("name", ["x-headrace-retry-of", "x-headrace-session", "x-headrace-class"])
def test_a_label_that_is_too_long_is_refused_by_name(http: Http, name: str) -> None:
    answer = http.post(CHAT, PATHS[CHAT], **{name: "x" * 257})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == name


@pytest.mark.parametrize("path", PATHS)
def test_a_class_that_there_is_not_is_refused_by_the_name_of_its_header(http: Http, path: str) -> None:
    answer = http.post(path, PATHS[path], **{"x-headrace-class": "gold"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "x-headrace-class")
    assert "no class 'gold'" in error["message"] and "slo_class" not in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_cache_key": "x" * 257}, "prompt_cache_key"),
        ({"metadata": {"retry_of": "x" * 257}}, "metadata.retry_of"),
        ({"metadata": {"k" * 513: "v"}}, "metadata"),
    ],
)
def test_a_label_in_a_body_is_refused_by_its_name_there(http: Http, fields: dict[str, Any], param: str) -> None:
    error = http.refused(CHAT, {**PATHS[CHAT], **fields})
    assert error["param"] == param and "at most" in error["message"]


def test_a_pair_without_a_value_is_refused_and_its_name_cut(http: Http) -> None:
    assert http.refused(CHAT, {**PATHS[CHAT], "metadata": {"k" * 9000: None}})["param"] == f"metadata.{'k' * 80}"
    assert http.refused(CHAT, {**PATHS[CHAT], "logit_bias": {"5": None}})["param"] == "logit_bias.5"
