"""The public HTTP application. Every path but the probes wants a credential, also those that do not exist."""

import logging
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.front import Front
from headrace_gateway.http.api import Api
from headrace_gateway.http.chat import ChatApi
from headrace_gateway.http.completions import CompletionsApi
from headrace_gateway.http.cors import Cors
from headrace_gateway.http.endpoint import Endpoint
from headrace_gateway.http.errors import AnthropicErrors, ErrorForm, OpenAiErrors, error_response
from headrace_gateway.http.headers import credential, id_headers
from headrace_gateway.http.messages.endpoint import MessagesApi
from headrace_gateway.http.responses.endpoint import ResponsesApi
from headrace_kit.errors import HeadraceError
from headrace_kit.health import Health

log = logging.getLogger(__name__)
NOT_SERVED = {
    "/v1/embeddings": "embeddings are not served",
    "/v1/moderations": "moderation is not served",
    "/v1/audio": "audio is not served",
    "/v1/images": "images are not served",
    "/v1/videos": "videos are not served",
    "/v1/files": "files are not served",
    "/v1/uploads": "uploads are not served",
    "/v1/batches": "batches are not served",
    "/v1/fine_tuning": "fine-tuning is not served",
    "/v1/vector_stores": "vector stores are not served",
    "/v1/assistants": "assistants are not served",
    "/v1/threads": "threads are not served",
    "/v1/conversations": "conversations are not stored",
    "/v1/realtime": "realtime sessions are not served",
    "/v1/chat/completions/": "completions are not stored",
    "/v1/responses/": "responses are not stored (store is off), so none can be fetched, listed or cancelled by id",
    "/v1/complete": "the older text completions of Anthropic are not served; use /v1/messages",
    "/v1/messages/batches": "batches are not served",
}
"""Paths that clients know from elsewhere, and what to tell those who try."""


GENERATING: dict[str, Api] = {
    "/v1/chat/completions": ChatApi(),
    "/v1/completions": CompletionsApi(),
    "/v1/responses": ResponsesApi(),
    "/v1/messages": MessagesApi(),
}


class App:
    """The handlers that are not an API of their own."""

    def __init__(self, front: Front, health: Health, max_body_bytes: int) -> None:
        self._front, self._health, self._max_body_bytes = front, health, max_body_bytes

    def build(self) -> Starlette:
        routes = [Route(path, self._endpoint(api), methods=["POST"]) for path, api in GENERATING.items()]
        return Starlette(
            routes=[
                *routes,
                Route("/v1/messages/count_tokens", self._count_messages, methods=["POST"]),
                Route("/v1/responses/input_tokens", self._count_input, methods=["POST"]),
                Route("/v1/models", self._list_models),
                Route("/v1/models/{model:path}", self._get_model),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
            ],
            exception_handlers={HeadraceError: _on_error, HTTPException: self._on_http_error, 500: _on_crash},
        )

    def _endpoint(self, api: Api) -> Endpoint:
        return Endpoint(self._front, api, self._max_body_bytes)

    async def _count_messages(self, request: Request) -> Response:
        num_tokens = await self._endpoint(MessagesApi(counting=True)).count(request)
        return JSONResponse({"input_tokens": num_tokens}, headers=id_headers(request))

    async def _count_input(self, request: Request) -> Response:
        num_tokens = await self._endpoint(ResponsesApi()).count(request)
        body = {"object": "response.input_tokens", "input_tokens": num_tokens}
        return JSONResponse(body, headers=id_headers(request))

    async def _list_models(self, request: Request) -> Response:
        models = await self._front.models(credential(request))
        return JSONResponse({"object": "list", "data": [_model(one) for one in models]}, headers=id_headers(request))

    async def _get_model(self, request: Request) -> Response:
        wanted = request.path_params["model"]
        for one in await self._front.models(credential(request)):
            if one.id == wanted:
                return JSONResponse(_model(one), headers=id_headers(request))
        raise HeadraceError("model_not_found", f"there is no model {wanted[:80]!r}", field="model")

    async def _healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, _: Request) -> Response:
        ready = self._health.ready
        return PlainTextResponse("ready\n" if ready else "not ready\n", 200 if ready else 503)

    async def _on_http_error(self, request: Request, error: Any) -> Response:
        """No such path or method: the caller must still be someone."""
        assert isinstance(error, HTTPException), "registered for HTTPException"
        try:
            await self._front.identify(credential(request))
        except HeadraceError as refused:
            return await _on_error(request, refused)
        return _no_route(request, error)


def build_app(front: Front, health: Health, max_body_bytes: int) -> ASGIApp:
    """Routes, error bodies, and who may call from a browser."""
    return Cors(App(front, health, max_body_bytes).build(), lambda: front.cors_origins)


async def _on_error(request: Request, error: Any) -> Response:
    assert isinstance(error, HeadraceError), "registered for HeadraceError"
    return error_response(error, _form(request), id_headers(request))


async def _on_crash(request: Request, error: Any) -> Response:
    log.error("http_crashed", exc_info=error)
    return await _on_error(request, HeadraceError("internal", "internal error"))


def _form(request: Request) -> ErrorForm:
    return AnthropicErrors() if request.url.path.startswith("/v1/messages") else OpenAiErrors()


def _no_route(request: Request, error: HTTPException) -> Response:
    path, status = request.url.path, error.status_code
    told = next((text for prefix, text in NOT_SERVED.items() if path.startswith(prefix)), "")
    what = f"{request.method} {path[:80]} is not served"
    refusal = HeadraceError("invalid_argument", f"{what}: {told}" if told else what)
    body = _form(request).error(refusal, "")
    body["error"]["code"] = "not_found" if status == 404 else "method_not_allowed"
    body["error"]["type"] = "not_found_error" if status == 404 else "invalid_request_error"
    return JSONResponse(body, status, {**id_headers(request), **(error.headers or {})})


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
