"""The exception tree; the one table of reason strings is reasons.csv beside it (DESIGN section 9).

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

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from importlib import resources
from typing import Any, Self, TypeVar, cast

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

M = TypeVar("M", bound=Message)
DOMAIN = "headrace"
_MAX_TEXT_BYTES = 600  # message, field and details travel percent-encoded or base64 in 8 KiB of metadata
_SECRETS = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"\bhr_([A-Za-z0-9]+)_[A-Za-z0-9_\-]+", r"hr_\1_***"),
        (r"\beyJ[\w\-]+\.[\w\-]+\.[\w\-]*", "***"),
        (r"([?&](?:[\w\-]*key|[\w\-]*token|secret|password)=)[^&\s\"'#]+", r"\1***"),
        (r"\b((?:authorization|x-api-key)\\?[\"']?\s*[:=]\s*\\?[\"']?)(?:(?:bearer|basic)\s+)?[^\s,;\"'\\]+", r"\1***"),
        (r"\b(bearer\s+)[\w\-.~+/]{8,}=*", r"\1***"),
        (r"(://[^/\s:@]*:)[^/\s@]+@", r"\1***@"),
    )
)


_SUSPECT = re.compile(r"[:=]|hr_|eyj|bearer", re.IGNORECASE)  # what each of them has; most texts have none


def redact(text: str) -> str:
    """Masks credentials by their type: our keys, JWTs, query keys, authorization headers, passwords in URLs."""
    if _SUSPECT.search(text) is None:
        return text
    return reduce(lambda masked, secret: secret[0].sub(secret[1], masked), _SECRETS, text)


@dataclass(frozen=True)
class Reason:
    """One row; ``phase`` is before_created, failed, cancelled or choice."""

    phase: str
    code: grpc.StatusCode
    http: int
    retryable: bool
    meaning: str


def _table() -> dict[str, Reason]:
    rows = csv.DictReader(resources.files(__package__).joinpath("reasons.csv").read_text("utf-8").splitlines())
    return {
        row["reason"]: Reason(
            row["phase"], grpc.StatusCode[row["grpc_code"]], int(row["http"]), row["retryable"] == "yes", row["meaning"]
        )
        for row in rows
    }


REASONS: Mapping[str, Reason] = _table()


class HeadraceError(Exception):
    """A typed error with a reason of REASONS; its texts are redacted and cut, for they travel in bounded metadata.

    ``field`` names the offending request field, ``retry_after_s`` a wait in seconds, ``details`` further text facts.
    """

    def __new__(cls, reason: str, *_args: object, **_kwargs: object) -> Self:
        assert reason in REASONS and REASONS[reason].phase != "choice", f"unknown error reason {reason!r}"
        family = ResponseFailed if REASONS[reason].phase == "failed" else _FAMILIES[REASONS[reason].http]
        assert issubclass(family, cls), f"{reason} is a {family.__name__}, not a {cls.__name__}"
        return cast(Self, Exception.__new__(family))

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
        details: Mapping[str, str] | None = None,
    ) -> None:
        self.reason, self.row, self.message = reason, REASONS[reason], _tidy(message)
        self.field, self.retry_after_s = None if field is None else _tidy(field), retry_after_s
        self.details = {_tidy(name): _tidy(value) for name, value in (details or {}).items()}
        super().__init__(f"{reason}: {self.message}")

    def to_status(self) -> grpc.Status:
        """Rich status: google.rpc ErrorInfo (reason in upper case), BadRequest if a field, RetryInfo if a wait."""
        details: list[Message] = [ErrorInfo(reason=self.reason.upper(), domain=DOMAIN, metadata=self.details)]
        if self.field is not None:
            violation = BadRequest.FieldViolation(field=self.field, description=self.message)
            details.append(BadRequest(field_violations=[violation]))
        if self.retry_after_s is not None:
            details.append(
                RetryInfo(
                    retry_delay=Duration(nanos=round(self.retry_after_s % 1 * 1e9), seconds=int(self.retry_after_s))
                )
            )
        status = Status(code=self.row.code.value[0], message=self.message)
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


_FAMILIES = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: PermissionDenied,
    404: ModelNotFound,
    413: TooLarge,
    429: QuotaExceeded,
    503: Unavailable,
    499: ResponseCancelled,
}


def from_rpc_error(error: grpc.RpcError, *, fallback: str) -> HeadraceError:
    """Inverse of ``to_status``; a fault without our ErrorInfo (transport, foreign server) gets ``fallback``."""
    call: Any = error
    try:
        status = rpc_status.from_call(call) or Status()
        info, bad, retry = _detail(status, ErrorInfo()), _detail(status, BadRequest()), _detail(status, RetryInfo())
    except (ValueError, DecodeError):  # a foreign server's broken details count as none
        info = ErrorInfo()
    message, reason = call.details() or call.code().name, info.reason.lower()
    if info.domain != DOMAIN or reason not in REASONS or REASONS[reason].phase == "choice":
        return HeadraceError(fallback, message, details={"grpc_code": call.code().name})
    return HeadraceError(
        reason,
        message,
        field=bad.field_violations[0].field if bad.field_violations else None,
        details=info.metadata,
        retry_after_s=retry.retry_delay.ToMicroseconds() / 1e6 if retry.HasField("retry_delay") else None,
    )


def _tidy(text: str) -> str:
    return redact(text).encode("utf-8", "replace")[:_MAX_TEXT_BYTES].decode("utf-8", "ignore")


def _detail(status: Status, kind: M) -> M:
    for packed in status.details:
        packed.Unpack(kind)
    return kind
