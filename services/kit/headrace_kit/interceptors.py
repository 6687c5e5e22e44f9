"""The one place where a servicer's errors become gRPC statuses; also token, trace, log context and the call counter."""

import asyncio
import contextlib
import hmac
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from headrace_kit import logs, telemetry, tracing
from headrace_kit.errors import HeadraceError

log = logging.getLogger(__name__)
_FREE = "/grpc.health.v1.Health/"
_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_calls = telemetry.counter("rpc_total", "Finished gRPC calls by method and status", ["method", "code"])


def bearer_matches(headers: Mapping[str, Any], token: str) -> bool:
    """Constant-time test of ``authorization: Bearer <token>`` (lower-case names)."""
    return hmac.compare_digest(str(headers.get("authorization", "")).encode(), f"Bearer {token}".encode())


class RpcInterceptor(grpc.aio.ServerInterceptor):
    """``token=None`` is for a public listener, whose servicers authenticate their callers themselves."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method, headers = handler_call_details.method, dict(handler_call_details.invocation_metadata)
        kind = next(kind for kind in _KINDS if getattr(handler, kind) is not None)
        behaviour = getattr(handler, kind)

        async def call(request: Any, context: Any) -> Any:
            parent = tracing.parse(headers)
            with logs.bind(method=method, trace_id=parent and parent.trace_id):
                if parent is None or kind != "unary_unary":  # a stream outlives what it was opened for
                    tracing.enter(parent)
                    return await self._call(method, headers, behaviour, request, context)
                return await self._traced(parent, method, headers, (behaviour, request, context))

        changed: dict[str, Any] = {kind: call}
        if kind.startswith("unary") and handler.request_deserializer is not None:
            changed["request_deserializer"] = _tolerant(handler.request_deserializer)
        return handler._replace(**changed)

    async def _traced(
        self, parent: tracing.TraceContext, method: str, headers: Mapping[str, Any], rest: tuple[Any, Any, Any]
    ) -> Any:
        """The call as a span of the caller's trace."""
        own, start_ns = parent.child(), time.time_ns()
        with tracing.entered(own) as notes:
            try:
                return await self._call(method, headers, *rest)
            finally:
                code = rest[2].code()
                status = code.name if isinstance(code, grpc.StatusCode) else "OK"
                notes |= {"rpc.system": "grpc", "rpc.method": method[1:], "rpc.response.status_code": status}
                error = "" if status == "OK" else status
                span = tracing.Span(own, parent.span_id, method[1:], start_ns, time.time_ns(), tracing.SERVER, notes)
                span.error = error
                tracing.SPANS.end(span)

    async def _call(self, method: str, headers: Mapping[str, Any], behaviour: Any, request: Any, context: Any) -> Any:
        code = "OK"
        try:
            if self._token and not method.startswith(_FREE) and not bearer_matches(headers, self._token):
                # A tenant's key is a credential, only not one for this listener (decision 21).
                tenant = str(headers.get("authorization", "")).startswith("Bearer hr_")
                reason = "permission_denied" if tenant else "unauthenticated"
                raise HeadraceError(reason, "the service token is missing or wrong")
            if isinstance(request, DecodeError):
                raise HeadraceError("invalid_argument", "the request is no message of this method", field="request")
            return await _run(behaviour(request, context), context)
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except grpc.aio.AbortError:
            code = context.code().name
            raise
        except HeadraceError as error:
            code = error.row.code.name
            await context.abort_with_status(error.to_status())
        except Exception:
            code = "INTERNAL"
            log.exception("rpc_crashed")
            await context.abort_with_status(HeadraceError("internal", "internal error").to_status())
        finally:
            _calls.labels(method, code).inc()


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """gRPC would answer UNKNOWN to bytes that are no message, before any servicer: the fault becomes the request."""

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return error

    return parse


async def _run(result: Any, context: Any) -> Any:
    if not inspect.isasyncgen(result):
        return await result
    async with contextlib.aclosing(result):
        async for message in result:
            await context.write(message)
