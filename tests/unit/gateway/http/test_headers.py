"""What callers may say in headers, and what answers carry."""

from typing import Any

import pytest
from starlette.requests import Request

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.errors import AnthropicErrors, OpenAiErrors, error_response, renamed
from headrace_gateway.http.headers import client_request_id, credential, response_headers, take_headers
from headrace_kit.errors import HeadraceError
from tests.unit.gateway.http.fakes import FakeSession


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw, "path": "/", "query_string": b"key=secret"})


def test_credentials_come_in_headers_only() -> None:
    assert credential(request(authorization="Bearer one")) == "one"
    assert credential(request(x_api_key="two")) == "two"
    assert credential(request(authorization="Basic three")) == ""
    assert credential(request()) == ""


@pytest.mark.parametrize("given", ["m" * 129, "a b", "a\tb", "é", ""])
def test_ids_that_may_not_be_echoed(given: str) -> None:
    assert client_request_id(request(x_request_id=given)) == ""


def test_a_header_goes_before_the_body() -> None:
    generate = pb.GenerateRequest(session_id="body", retry_of="resp_body")
    deadline_s = take_headers(
        generate,
        request(
            x_headrace_session="mine",
            x_headrace_retry_of="resp_0",
            x_headrace_deadline_ms="1500",
            x_headrace_class="batch",
        ),
    )
    assert (generate.session_id, generate.retry_of, generate.slo_class) == ("mine", "resp_0", "batch")
    assert deadline_s == 1.5
    assert take_headers(generate, request()) is None
    assert generate.session_id == "mine"


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "soon", "9" * 30, "٣", "0" * 11 + "1" * 9, "0" * 11 + "1" * 4500])
def test_a_deadline_is_a_number_of_milliseconds(given: str) -> None:
    raw: Any = Request({"type": "http", "headers": [(b"x-headrace-deadline-ms", given.encode("utf-8"))], "path": "/"})
    with pytest.raises(HeadraceError, match="deadline-ms"):
        take_headers(pb.GenerateRequest(), raw)


def test_what_an_answer_carries() -> None:
    session: Any = FakeSession(pb.GenerateRequest(client_request_id="mine", retry_of="resp_0"))
    headers = response_headers(session)
    assert headers["x-request-id"] == "mine"
    assert headers["x-headrace-response-id"] == "resp_1"
    assert headers["x-headrace-snapshot"] == "4"
    assert headers["x-headrace-retry-of"] == "resp_0"
    assert headers["x-ratelimit-limit-requests"] == "60"
    assert headers["x-ratelimit-remaining-requests"] == "59"
    assert headers["x-ratelimit-reset-requests"] == "1300ms"
    assert headers["x-accel-buffering"] == "no" and headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(("wait_s", "told"), [(0.2, "1"), (2.0, "2"), (2.1, "3"), (None, None)])
def test_a_wait_is_told_in_whole_seconds(wait_s: float | None, told: str | None) -> None:
    error = HeadraceError("rpm", "too many", retry_after_s=wait_s)
    answer = error_response(error, OpenAiErrors(), {"x-request-id": "mine"})
    assert answer.status_code == 429
    assert answer.headers.get("retry-after") == told
    assert answer.headers["x-request-id"] == "mine"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("invalid_argument", "invalid_request_error"),
        ("unauthenticated", "authentication_error"),
        ("permission_denied", "permission_error"),
        ("model_not_found", "not_found_error"),
        ("too_large", "request_too_large"),
        ("tpm", "rate_limit_error"),
        ("busy", "overloaded_error"),
        ("engine_error", "api_error"),
        ("deadline", "timeout_error"),
    ],
)
def test_anthropics_types(reason: str, kind: str) -> None:
    body = AnthropicErrors().error(HeadraceError(reason, "x"), "")
    assert body["type"] == "error" and body["error"]["type"] == kind


def test_errors_name_fields_as_the_api_does() -> None:
    error = HeadraceError("invalid_argument", "stop[3]: too long", field="stop[3]", retry_after_s=1.0)
    named = renamed(error, {"stop": "stop_sequences"})
    assert (named.field, named.message) == ("stop_sequences[3]", "stop_sequences[3]: too long")
    assert named.retry_after_s == 1.0
    assert renamed(error, {"prompt": "messages"}) is error
    context = HeadraceError("context_length_exceeded", "the prompt has 9 tokens", field="prompt")
    assert renamed(context, {"prompt": "messages"}).message == "the prompt has 9 tokens"
