from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.rpc import code_pb2, error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from headrace_kit import errors
from headrace_kit.errors import REASONS, HeadraceError, from_rpc_error, redact

# DESIGN section 9, copied by hand: the table may hold these and no others.
DESIGNED = {
    400: "invalid_argument, context_length_exceeded, prompt_exceeds_capacity, no_chat_template, invalid_grammar, "
    "invalid_retry_of, blocked_input",
    401: "unauthenticated",
    403: "permission_denied",
    404: "model_not_found",
    413: "too_large",
    429: "rpm, tpm, tokens_per_day, spend, concurrency, share_exceeded",
    503: "quota_unavailable, policy_unavailable, no_replica, busy, queue_deadline, draining, storage_full",
}
FAILED = (
    "engine_error, decode_error, no_valid_token, kv_exhausted, worker_lost, replica_draining, prefill_lost, "
    "kv_expired, policy_lost, gateway_lost, deadline, internal"
)
CANCELLED = "client, disconnect, slow_client"
CHOICES = "stop, tool_calls, length, content_filter"
RAISED = sorted(name for name, row in REASONS.items() if row.phase != "choice")


def phase(name: str) -> set[str]:
    return {reason for reason, row in REASONS.items() if row.phase == name}


def rpc_error(status: Any) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(status.code, None, grpc.aio.Metadata(*status.trailing_metadata), status.details)


def test_the_table_holds_exactly_the_reasons_of_the_design() -> None:
    before = {http: set(names.split(", ")) for http, names in DESIGNED.items()}
    assert phase("before_created") == set().union(*before.values())
    assert all(REASONS[name].http == http for http, names in before.items() for name in names)
    assert (phase("failed"), phase("cancelled"), phase("choice")) == (
        set(FAILED.split(", ")),
        set(CANCELLED.split(", ")),
        set(CHOICES.split(", ")),
    )


def test_every_code_and_http_status_agree_with_the_status_map() -> None:
    pairs = {(row.code.name, row.http) for row in REASONS.values() if row.phase != "choice"}
    assert pairs <= {
        ("INVALID_ARGUMENT", 400),
        ("UNAUTHENTICATED", 401),
        ("PERMISSION_DENIED", 403),
        ("NOT_FOUND", 404),
        ("RESOURCE_EXHAUSTED", 413),
        ("RESOURCE_EXHAUSTED", 429),
        ("CANCELLED", 499),
        ("INTERNAL", 500),
        ("UNAVAILABLE", 503),
        ("DEADLINE_EXCEEDED", 504),
    }
    assert all(row.retryable for row in REASONS.values() if row.http in (429, 503))
    assert all(row.meaning for row in REASONS.values())


@pytest.mark.parametrize("reason", ["busyy", "BUSY", "", "stop"])
def test_any_other_reason_is_our_own_mistake(reason: str) -> None:
    with pytest.raises(AssertionError, match="unknown error reason"):
        HeadraceError(reason, "text")


def test_the_reason_decides_the_class() -> None:
    assert type(HeadraceError("busy", "full")) is errors.Unavailable
    assert type(HeadraceError("deadline", "late")) is errors.ResponseFailed
    assert type(errors.QuotaExceeded("rpm", "used up")) is errors.QuotaExceeded
    with pytest.raises(AssertionError, match="busy is a Unavailable, not a QuotaExceeded"):
        errors.QuotaExceeded("busy", "full")


@given(
    st.sampled_from(RAISED),
    st.text("héllo ", max_size=20),
    st.none() | st.text("abc.[0]", min_size=1),
    st.none() | st.integers(0, 10**10),
    st.dictionaries(st.text("ab", min_size=1), st.text("12 "), max_size=3),
)
def test_an_error_survives_the_wire(
    reason: str, message: str, field: str | None, retry_us: int | None, details: dict[str, str]
) -> None:
    retry_after_s = None if retry_us is None else retry_us / 1e6
    sent = HeadraceError(reason, message, field=field, retry_after_s=retry_after_s, details=details)
    got = from_rpc_error(rpc_error(sent.to_status()), fallback="internal")
    assert type(got) is type(sent)
    assert (got.reason, got.field, got.details) == (reason, field, details)
    assert got.message == (message or got.row.code.name)
    assert got.retry_after_s == (None if retry_after_s is None else pytest.approx(retry_after_s, abs=1e-6))


def test_the_status_follows_google_rpc() -> None:
    raw: Any = HeadraceError("invalid_argument", "must be 0..20", field="top_logprobs", retry_after_s=1.5).to_status()
    status = status_pb2.Status.FromString(dict(raw.trailing_metadata)["grpc-status-details-bin"])
    assert (status.code, status.message) == (code_pb2.INVALID_ARGUMENT, "must be 0..20")
    info, bad, retry = (error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo())
    assert [any_.Unpack(part) for any_, part in zip(status.details, (info, bad, retry), strict=True)] == [True] * 3
    assert (info.reason, info.domain) == ("INVALID_ARGUMENT", "headrace")
    assert (bad.field_violations[0].field, retry.retry_delay.ToMilliseconds()) == ("top_logprobs", 1500)


def foreign(*details: Packed, code: int = code_pb2.UNAVAILABLE) -> tuple[tuple[str, bytes], ...]:
    status = status_pb2.Status(code=code, message="m", details=details)
    return (("grpc-status-details-bin", status.SerializeToString()),)


def packed(reason: str, domain: str) -> Packed:
    any_ = Packed()
    any_.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain))
    return any_


@pytest.mark.parametrize(
    "trailing",
    [
        (),
        (("grpc-status-details-bin", b"\xff\xff"),),
        foreign(),
        foreign(packed("BUSY", "elsewhere")),
        foreign(packed("NOT_OURS", "headrace")),
        foreign(packed("STOP", "headrace")),
        foreign(packed("BUSY", "headrace"), code=code_pb2.INTERNAL),
        foreign(Packed(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff")),
    ],
)
def test_a_transport_fault_or_foreign_detail_gets_the_fallback(trailing: Any) -> None:
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, None, grpc.aio.Metadata(*trailing), "m")
    got = from_rpc_error(error, fallback="worker_lost")
    assert (got.reason, got.message, got.details) == ("worker_lost", "m", {"grpc_code": "UNAVAILABLE"})


@pytest.mark.parametrize(
    "text, clean",
    [
        ("GET /v1/models?key=abc123&x=1", "GET /v1/models?key=***&x=1"),
        ("http://h/p?a=1&api_key=abc", "http://h/p?a=1&api_key=***"),
        ("http://h/p?access_token=abc#f", "http://h/p?access_token=***#f"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: ***"),
        ("{'authorization': 'Bearer abc'}", "{'authorization': '***'}"),
        ('{"x-api-key": "abc"}', '{"x-api-key": "***"}'),
        ("authorization=Basic dXNlcjpwdw==", "authorization=***"),
        ("sent bearer abcdefgh1234 to", "sent bearer *** to"),
        ("key hr_k1a2_s3cr3t-x_y is", "key hr_k1a2_*** is"),
        ("jwt eyJhbGciOi.eyJzdWIi.c2ln-X_ here", "jwt *** here"),
        ("redis://user:pa55@host:6379/0", "redis://user:***@host:6379/0"),
        ("redis://:pa55@host", "redis://:***@host"),
        (
            "hr_ is no key, nor is max_tokens=5, nor http://h:80/a@b",
            "hr_ is no key, nor is max_tokens=5, nor http://h:80/a@b",
        ),
        ("the bearer of bad news", "the bearer of bad news"),
    ],
)
def test_credentials_are_masked_by_type(text: str, clean: str) -> None:
    assert redact(text) == clean
    assert redact(clean) == clean


def test_no_error_carries_a_credential() -> None:
    error = HeadraceError("unauthenticated", "no key hr_id1_secret", details={"header": "Authorization: Basic zzzz"})
    status: Any = error.to_status()
    shown = f"{error} {error!r} {error.details} {status.details} {status.trailing_metadata}"
    assert "secret" not in shown and "zzzz" not in shown
