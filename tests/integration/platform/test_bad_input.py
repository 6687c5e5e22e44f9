"""Bad input: a typed status before `created` that names the field; nothing runs and nothing is leaked."""

import json
from typing import Any

import grpc
import httpx
import pytest

from headrace.v1 import inference_pb2 as pb
from headrace_cli.client import Client, build_request
from headrace_kit.errors import HeadraceError, from_rpc_error
from tests.integration.platform.running_platform import Platform

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def http(platform: Platform) -> Any:
    headers = {"authorization": f"Bearer {platform.api_key}"}
    with httpx.Client(base_url=platform.http, headers=headers, trust_env=False, timeout=20.0) as client:
        yield client


def post(http: httpx.Client, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return http.post("/v1/chat/completions", content=content)


def refused(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    """The error of a request that is right but for these fields."""
    answer = post(http, {"model": "scripted", "messages": HI, **fields})
    assert answer.status_code == 400, f"{fields} gave {answer.status_code}: {answer.text[:200]}"
    error: dict[str, Any] = answer.json()["error"]
    return error


def accepted(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = post(http, {"model": "scripted", "messages": HI, **fields})
    assert answer.status_code == 200, f"{fields} gave {answer.status_code}: {answer.text[:200]}"
    body: dict[str, Any] = answer.json()
    return body


def content_of(body: dict[str, Any]) -> str:
    return str(body["choices"][0]["message"]["content"])


@pytest.mark.parametrize("value", [10**9, 2**31, 2**63, 1.5, True, "8", 0, -1])
def test_output_limits(http: httpx.Client, value: Any) -> None:
    assert refused(http, max_tokens=value)["param"] in ("max_tokens", "max_output_tokens")  # B30


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty", "max_tokens"])
def test_numbers_that_are_none(http: httpx.Client, name: str, constant: str) -> None:
    body = f'{{"model":"scripted","messages":{json.dumps(HI)},"{name}":{constant}}}'.encode()
    answer = post(http, body)  # B38
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_argument"


@pytest.mark.parametrize("value", [0.01, "5", True, -2])
def test_top_k(http: httpx.Client, value: Any) -> None:
    assert refused(http, top_k=value)["param"] == "top_k"  # B41


def test_top_k_neutral_values(http: httpx.Client) -> None:
    assert {content_of(accepted(http, top_k=value)) for value in (0, -1, 1, 261)} == {"hi"}


@pytest.mark.parametrize(
    "messages", [[], None, {}, "hi", [None], [{}], [{"role": "user"}], [{"role": "x", "content": ""}]]
)
def test_messages(http: httpx.Client, messages: Any) -> None:
    assert refused(http, messages=messages)["param"].startswith("messages")  # B33


def test_null_is_absent(http: httpx.Client) -> None:
    names = ("max_tokens", "temperature", "top_p", "stop", "n", "seed", "stream", "stream_options", "logprobs", "tools")
    assert content_of(accepted(http, **dict.fromkeys(names))) == "hi"  # B31


@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 1000000, "logprobs": True},
        {"top_logprobs": -1, "logprobs": True},
        {"top_logprobs": 21, "logprobs": True},
        {"top_logprobs": 5},
        {"stop_token_ids": [260]},
        {"stop_token_ids": [-1]},
        {"logit_bias": {"260": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"5": 101}},
        {"tool_choice": "bogus"},
        {"stream": "yes"},
        {"n": "2"},
        {"n": 0},
        {"n": -1},
        {"n": 129},
        {"stop": [""]},
        {"stop": ["x"] * 17},
        {"stop": 5},
        {"temperature": -0.1},
        {"temperature": "warm"},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function"}]},
        {"stream_options": {"include_usage": True}},
        {"max_tokens": 3, "max_completion_tokens": 4},
    ],
)
def test_bad_values_of_known_fields(http: httpx.Client, fields: dict[str, Any]) -> None:
    error = refused(http, **fields)  # B37, B42, B43, B46
    assert error["param"].partition(".")[0].partition("[")[0] in fields


@pytest.mark.parametrize(
    "fields",
    [
        {"foo": 1, "store": False},
        {"stop_token_ids": [259], "min_tokens": 1},
        {"logit_bias": {"5": -100}},
        {"top_logprobs": 20, "logprobs": True},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"metadata": {"a": "b"}, "user": "x", "service_tier": "auto"},
    ],
)
def test_what_is_harmless_is_served(http: httpx.Client, fields: dict[str, Any]) -> None:
    assert content_of(accepted(http, **fields)) == "hi"


def test_the_context_limit_is_inclusive(platform: Platform) -> None:
    """8,192 tokens in all; the chat form of one message adds 20 (B27, B28)."""

    def outcome(num_chars: int, limit: int | None) -> str:
        with platform.client() as client:
            try:
                stream = client.generate(
                    "scripted", [{"role": "user", "content": "x" * num_chars}], max_output_tokens=limit
                )
                events = list(stream)
            except HeadraceError as error:
                assert "-" not in error.message.split(";")[0]
                return error.reason
            return str(events[-1].WhichOneof("event"))

    assert outcome(8168, 4) == "incomplete"
    assert outcome(8168, 5) == "context_length_exceeded"
    assert outcome(8171, 1) == "incomplete"
    assert outcome(8172, 1) == outcome(8172, None) == "context_length_exceeded"


def test_bodies_that_are_none(http: httpx.Client) -> None:
    for body in (b"", b"[]", b"nonsense", b'{"model": "scripted"', b"\xff\xfe", b"[" * 100_000):
        assert post(http, body).status_code == 400
    surrogate = b'{"model":"scripted","messages":[{"role":"user","content":"\\ud800"}]}'
    assert post(http, surrogate).json()["error"]["param"] == "messages[0].content"
    large = post(http, b'{"model":"' + b"x" * 10_000_000 + b'"}')
    assert large.status_code == 413 and large.json()["error"]["code"] == "too_large"


def test_unknown_models(http: httpx.Client, platform: Platform) -> None:
    answer = post(http, {"model": "nobody", "messages": HI})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
    assert post(http, {"messages": HI}).status_code == 400
    with platform.client() as client, pytest.raises(HeadraceError) as refusal:
        list(client.generate("nobody", HI))
    assert refusal.value.reason == "model_not_found" and refusal.value.field == "model"


@pytest.mark.parametrize("ids", [[-1], [260], [2**31]])
def test_prompt_ids(platform: Platform, ids: list[int]) -> None:
    with platform.client() as client, pytest.raises(HeadraceError) as refusal:
        list(client.generate("scripted", ids))  # B43
    assert refusal.value.reason == "invalid_argument" and refusal.value.field == "prompt"


def test_grpc_numbers_that_are_none(platform: Platform) -> None:
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty"):
        for value in (float("nan"), float("inf"), float("-inf")):
            options: dict[str, Any] = {name: value}
            with platform.client() as client, pytest.raises(HeadraceError) as refusal:
                list(client.generate("scripted", HI, **options))
            assert refusal.value.field == name


def test_grpc_requests_without_content(platform: Platform) -> None:
    empty = (pb.GenerateRequest(), pb.GenerateRequest(model="scripted"), build_request("scripted", ""))
    with platform.client() as client:
        for request in empty:
            with pytest.raises(HeadraceError) as refusal:
                list(_raw(client, request))
            assert refusal.value.reason == "invalid_argument"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model": "x" * 257}, "model"),
        ({"session_id": "x" * 257}, "session_id"),
        ({"retry_of": "x" * 257}, "retry_of"),
        ({"slo_class": "x" * 257}, "slo_class"),
        ({"client_request_id": "x" * 129}, "client_request_id"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"adapter": "x"}, "adapter"),
        ({"stop": ["x" * 1025]}, "stop[0]"),
        ({"grammar": {"kind": 3, "text": "x" * 65537}}, "grammar.text"),
        ({"chat": {"messages": [{"role": "user", "name": "x" * 257}]}}, "messages[0].name"),
        ({"chat": {"messages": [{"role": "tool", "tool_call_id": "x" * 257}]}}, "messages[0].tool_call_id"),
        ({"sampling": {"stop_token_ids": [5] * 1025}}, "stop_token_ids"),
    ],
)
def test_everything_a_grpc_client_may_say_is_bounded(platform: Platform, fields: dict[str, Any], named: str) -> None:
    good = {"model": "scripted", "chat": {"messages": HI}}
    with platform.client() as client, pytest.raises(HeadraceError) as refusal:
        list(_raw(client, pb.GenerateRequest(**{**good, **fields})))
    assert (refusal.value.reason, refusal.value.field) == ("invalid_argument", named)


@pytest.mark.parametrize("method", ["Generate", "Cancel", "ListModels", "CountTokens"])
def test_bytes_that_are_no_message_are_refused(platform: Platform, method: str) -> None:
    with platform.client() as client:
        call: Any = client._channel.unary_stream(f"/headrace.v1.Inference/{method}")
        with pytest.raises(grpc.RpcError) as refusal:
            list(call(b"\xff\xff\xff", metadata=client._metadata, timeout=10.0))
    error = from_rpc_error(refusal.value, fallback="internal")
    assert (error.reason, error.field) == ("invalid_argument", "request")


def test_a_cancel_of_what_cannot_be_an_id_is_refused(platform: Platform) -> None:
    with platform.client() as client:
        with pytest.raises(HeadraceError) as refusal:
            client.cancel("x" * 257)
        assert refusal.value.field == "response_id"
        assert client.cancel("resp_never") is False


def _raw(client: Client, request: pb.GenerateRequest) -> Any:
    from headrace_cli.client import Stream

    return Stream(client._stub.Generate(request, metadata=client._metadata, timeout=10.0))


def test_request_ids_are_echoed_and_never_keys(http: httpx.Client) -> None:
    body = {"model": "scripted", "messages": HI}
    first, second = (http.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine"}) for _ in range(2))
    assert first.headers["x-request-id"] == second.headers["x-request-id"] == "mine"  # B44
    assert first.headers["x-headrace-response-id"] != second.headers["x-headrace-response-id"]
    long = http.post("/v1/chat/completions", json=body, headers={"x-request-id": "m" * 129})
    assert long.headers["x-request-id"] != "m" * 129


def test_nothing_is_leaked(platform: Platform, http: httpx.Client) -> None:
    """After all of the above the worker holds no page and the gateway no response."""
    accepted(http)
    text = http.get(
        f"http://{platform.announced('gateway')['http']}/metrics",
        headers={"authorization": f"Bearer {platform.service_token}"},
    ).text
    assert "responses_open 0.0" in text
    load = platform.load()
    assert (load.num_running, load.num_waiting, load.num_promised_pages, load.num_held_pages) == (0, 0, 0, 0)
