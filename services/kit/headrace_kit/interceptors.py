"""The one place where a servicer's errors become gRPC statuses; also token, trace, log context and the call counter."""

import asyncio
import contextlib
import hmac
import inspect
import logging
from collections.abc import Mapping
from typing import Any

import grpc
from opentelemetry.trace import SpanKind

from headrace_kit import logs, telemetry
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
            with (
                telemetry.tracer.start_as_current_span(
                    method,
                    telemetry.extract(headers),
                    SpanKind.SERVER,
                    record_exception=False,
                    set_status_on_exception=False,
                ),
                logs.bind(method=method, trace_id=telemetry.trace_id()),
            ):
                return await self._call(method, headers, behaviour, request, context)

        return handler._replace(**{kind: call})

    async def _call(self, method: str, headers: Mapping[str, Any], behaviour: Any, request: Any, context: Any) -> Any:
        code = "OK"
        try:
            if self._token and not method.startswith(_FREE) and not bearer_matches(headers, self._token):
                # A tenant's key is a credential, only not one for this listener (decision 21).
                tenant = str(headers.get("authorization", "")).startswith("Bearer hr_")
                reason = "permission_denied" if tenant else "unauthenticated"
                raise HeadraceError(reason, "the service token is missing or wrong")
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


async def _run(result: Any, context: Any) -> Any:
    if not inspect.isasyncgen(result):
        return await result
    async with contextlib.aclosing(result):
        async for message in result:
            await context.write(message)
