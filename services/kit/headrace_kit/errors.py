"""The exception tree and the one table of reason strings (DESIGN section 9).

HeadraceError
├── InvalidRequest      400  what the caller sent cannot be served
├── Unauthenticated     401
├── PermissionDenied    403
├── ModelNotFound       404
├── TooLarge            413
├── QuotaExceeded       429  the tenant is over its own share
├── Unavailable         503  refused before `created`; retryable
├── ResponseFailed           the response ended `failed`
└── ResponseCancelled   499  the response ended `cancelled`

``HeadraceError("busy", ...)`` makes an ``Unavailable``: the reason decides the class. Knows no transport but gRPC.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

DOMAIN = "headrace"
_SECRETS = tuple((re.compile(pattern, re.IGNORECASE), replacement) for pattern, replacement in (
    (r"\bhr_([A-Za-z0-9]+)_[A-Za-z0-9_\-]+", r"hr_\1_***"),
    (r"\beyJ[\w\-]+\.[\w\-]+\.[\w\-]*", "***"),
    (r"([?&](?:[\w\-]*key|[\w\-]*token|secret|password)=)[^&\s\"'#]+", r"\1***"),
    (r"\b((?:authorization|x-api-key)\\?[\"']?\s*[:=]\s*\\?[\"']?)(?:(?:bearer|basic)\s+)?[^\s,;\"'\\]+", r"\1***"),
    (r"\b(bearer\s+)[\w\-.~+/]{8,}=*", r"\1***"),
    (r"(://[^/\s:@]*:)[^/\s@]+@", r"\1***@"),
))


def redact(text: str) -> str:
    """Masks credentials by their type: our keys, JWTs, query keys, authorization headers, passwords in URLs."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


@dataclass(frozen=True)
class Reason:
    """One row of the table: when it is used, how it travels, whether a retry may help, what it means."""

    phase: Literal["before_created", "failed", "cancelled", "choice"]
    code: grpc.StatusCode
    http: int
    retryable: bool
    meaning: str


def _table() -> dict[str, Reason]:
    code = grpc.StatusCode
    rows: dict[tuple[Any, grpc.StatusCode, int, bool], dict[str, str]] = {
        ("before_created", code.INVALID_ARGUMENT, 400, False): {
            "invalid_argument": "a field is missing, mistyped or out of range",
            "context_length_exceeded": "prompt plus output is over the model's limit",
            "prompt_exceeds_capacity": "the request can never fit the replica's memory",
            "no_chat_template": "the model has no chat template; use completions",
            "invalid_grammar": "the grammar or schema does not compile",
            "invalid_retry_of": "retry_of names no failed response of this tenant",
            "blocked_input": "the input breaks a safety rule"},
        ("before_created", code.UNAUTHENTICATED, 401, False): {"unauthenticated": "the credential is missing or wrong"},
        ("before_created", code.PERMISSION_DENIED, 403, False): {"permission_denied": "the credential may not do this"},
        ("before_created", code.NOT_FOUND, 404, False): {"model_not_found": "no such model for this caller"},
        ("before_created", code.RESOURCE_EXHAUSTED, 413, False): {"too_large": "the body is over the size limit"},
        ("before_created", code.RESOURCE_EXHAUSTED, 429, True): {
            "rpm": "requests per minute are used up",
            "tpm": "tokens per minute are used up",
            "tokens_per_day": "tokens per day are used up",
            "spend": "the day's spend is used up",
            "concurrency": "too many responses in flight for this tenant",
            "share_exceeded": "the tenant fills its share of the waiting room"},
        ("before_created", code.UNAVAILABLE, 503, True): {
            "quota_unavailable": "the quota store does not answer",
            "policy_unavailable": "the policy service does not answer",
            "no_replica": "no ready replica can serve this model",
            "busy": "every waiting room is full",
            "queue_deadline": "no capacity came free within the queue deadline",
            "draining": "this server is stopping"},
        ("failed", code.INTERNAL, 500, True): {
            "engine_error": "the engine failed on this sequence",
            "decode_error": "the tokens could not be turned into text",
            "no_valid_token": "no token satisfies the constraints",
            "internal": "an unexpected fault of ours"},
        ("failed", code.UNAVAILABLE, 503, True): {
            "kv_exhausted": "the replica's memory ran out for a statistical request",
            "worker_lost": "the worker or its engine ended",
            "replica_draining": "the replica stopped before the response ended",
            "prefill_lost": "the prefill replica ended during the hand-off",
            "kv_expired": "the transferred KV outlived its lease",
            "policy_lost": "the safety screen was lost in mid-stream",
            "gateway_lost": "the gateway holding the stream ended"},
        ("failed", code.DEADLINE_EXCEEDED, 504, True): {"deadline": "the total deadline passed"},
        ("cancelled", code.CANCELLED, 499, False): {
            "client": "the client cancelled",
            "disconnect": "the client went away",
            "slow_client": "the client read too slowly"},
        ("choice", code.OK, 200, False): {
            "stop": "the model or a stop string ended the choice",
            "tool_calls": "the choice ended with tool calls",
            "length": "the output limit was reached",
            "content_filter": "the output broke a safety rule"},
    }
    return {name: Reason(*key, meaning) for key, names in rows.items() for name, meaning in names.items()}


REASONS: Mapping[str, Reason] = _table()


class HeadraceError(Exception):
    """A typed error with a reason of REASONS; message and details are redacted.

    ``field`` names the offending request field, ``retry_after_s`` a wait in seconds, ``details`` further text facts.
    """

    def __new__(cls, reason: str, *_args: object, **_kwargs: object) -> Self:
        assert reason in REASONS and REASONS[reason].phase != "choice", f"unknown error reason {reason!r}"
        family = _family(REASONS[reason])
        assert issubclass(family, cls), f"{reason} is a {family.__name__}, not a {cls.__name__}"
        return super().__new__(family)

    def __init__(self, reason: str, message: str, *, field: str | None = None, retry_after_s: float | None = None,
                 details: Mapping[str, str] | None = None) -> None:
        super().__init__(reason, redact(message))
        self.reason, self.message, self.field = reason, redact(message), field
        self.retry_after_s, self.details = retry_after_s, {k: redact(v) for k, v in (details or {}).items()}

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    @property
    def row(self) -> Reason:
        return REASONS[self.reason]

    def to_status(self) -> grpc.Status:
        """Rich status: google.rpc ErrorInfo (reason in upper case), BadRequest if a field, RetryInfo if a wait."""
        details: list[Any] = [error_details_pb2.ErrorInfo(reason=self.reason.upper(), domain=DOMAIN,
                                                          metadata=self.details)]
        if self.field is not None:
            violation = error_details_pb2.BadRequest.FieldViolation(field=self.field, description=self.message)
            details.append(error_details_pb2.BadRequest(field_violations=[violation]))
        if self.retry_after_s is not None:
            delay = duration_pb2.Duration()
            delay.FromMicroseconds(round(self.retry_after_s * 1e6))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        status = status_pb2.Status(code=self.row.code.value[0], message=self.message)
        for detail in details:
            status.details.add().Pack(detail)
        return rpc_status.to_status(status)


class InvalidRequest(HeadraceError): ...
class Unauthenticated(HeadraceError): ...
class PermissionDenied(HeadraceError): ...
class ModelNotFound(HeadraceError): ...
class TooLarge(HeadraceError): ...
class QuotaExceeded(HeadraceError): ...
class Unavailable(HeadraceError): ...
class ResponseFailed(HeadraceError): ...
class ResponseCancelled(HeadraceError): ...


def _family(row: Reason) -> type[HeadraceError]:
    if row.phase == "failed":
        return ResponseFailed
    return {400: InvalidRequest, 401: Unauthenticated, 403: PermissionDenied, 404: ModelNotFound, 413: TooLarge,
            429: QuotaExceeded, 503: Unavailable, 499: ResponseCancelled}[row.http]


def from_rpc_error(error: grpc.RpcError, *, fallback: str) -> HeadraceError:
    """Inverse of ``to_status``; a fault without our ErrorInfo (transport, foreign server) gets ``fallback``."""
    assert isinstance(error, grpc.aio.AioRpcError | grpc.Call), f"not a finished call: {error!r}"
    message = redact(error.details() or error.code().name)
    packed = [value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"]
    status, info, bad = status_pb2.Status(), error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    try:
        status.MergeFromString(packed[0] if packed else b"")
        found = {type(part) for part in (info, bad, retry) for any_ in status.details if _unpack(any_, part)}
    except DecodeError:
        found = set()
    reason = info.reason.lower()
    known = type(info) in found and info.domain == DOMAIN and reason in REASONS and REASONS[reason].phase != "choice"
    if not known:
        return HeadraceError(fallback, message, details={"grpc_code": error.code().name})
    return HeadraceError(
        reason, message, field=bad.field_violations[0].field if bad.field_violations else None,
        retry_after_s=retry.retry_delay.ToMicroseconds() / 1e6 if type(retry) in found else None,
        details=dict(info.metadata))


def _unpack(any_: any_pb2.Any, part: Any) -> bool:
    return any_.Unpack(part)
