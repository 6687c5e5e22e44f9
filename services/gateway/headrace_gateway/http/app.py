"""The public HTTP application. Every path but the probes wants a credential, also those that do not exist."""

import logging
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.front import Front
from headrace_gateway.http.chat import ChatEndpoint
from headrace_gateway.http.errors import error_object, error_response
from headrace_gateway.http.headers import credential
from headrace_kit.errors import HeadraceError
from headrace_kit.health import Health

log = logging.getLogger(__name__)


def build_app(front: Front, health: Health, max_body_bytes: int) -> Starlette:
    """Routes and error bodies."""

    async def list_models(request: Request) -> Response:
        models = await front.models(credential(request))
        return JSONResponse({"object": "list", "data": [_model(one) for one in models]})

    async def get_model(request: Request) -> Response:
        wanted = request.path_params["model"]
        for one in await front.models(credential(request)):
            if one.id == wanted:
                return JSONResponse(_model(one))
        raise HeadraceError("model_not_found", f"there is no model {wanted[:80]!r}", field="model")

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        return PlainTextResponse("ready\n" if health.ready else "not ready\n", 200 if health.ready else 503)

    async def on_error(_: Request, error: Any) -> Response:
        assert isinstance(error, HeadraceError), "registered for HeadraceError"
        return error_response(error)

    async def on_http_error(request: Request, error: Any) -> Response:
        """No such path or method: the caller must still be someone."""
        assert isinstance(error, HTTPException), "registered for HTTPException"
        try:
            await front.identify(credential(request))
        except HeadraceError as refused:
            return error_response(refused)
        return _no_route(request, error.status_code)

    async def on_crash(_: Request, error: Any) -> Response:
        log.error("http_crashed", exc_info=error)
        return error_response(HeadraceError("internal", "internal error"))

    return Starlette(
        routes=[
            Route("/v1/chat/completions", ChatEndpoint(front, max_body_bytes).handle, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/v1/models/{model:path}", get_model),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ],
        exception_handlers={HeadraceError: on_error, HTTPException: on_http_error, 500: on_crash},
    )


def _no_route(request: Request, status: int) -> Response:
    error = HeadraceError("invalid_argument", f"{request.method} {request.url.path[:80]} is not served")
    body = error_object(error)
    body["error"]["code"] = "not_found" if status == 404 else "method_not_allowed"
    return JSONResponse(body, status)


def _model(one: pb.Model) -> dict[str, Any]:
    return {
        "id": one.id,
        "object": "model",
        "created": one.created_at_s,
        "owned_by": one.owned_by,
        "max_context_tokens": one.max_context_tokens,
        "chat": one.chat,
        "num_ready_replicas": one.num_ready_replicas,
    }
