"""The reference server: an OpenAI-style application on loopback, and a thread that serves it."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.unit.conformance.reference import wire
from tests.unit.conformance.reference.faults import BEHAVIOURS, TRANSFORMS, Wires, text_of
from tests.unit.conformance.reference.playing import play
from tests.unit.conformance.reference.validation import content_of, refusal
from tests.unit.conformance.reference.writing import write

API_KEY, MODEL = "sk-reference", "scripted"
MAX_BODY_BYTES = 8 << 20
WRITERS = {"responses": wire.responses, "messages": wire.messages}
MODEL_OBJECT = {"id": MODEL, "object": "model", "created": 1700000000, "owned_by": "reference"}


class Refused(HTTPException):
    """A refusal with the field it names."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(status, message)
        self.param = param


class ReferenceServer:
    """``fault`` is the name of the one thing that is wrong, or empty."""

    def __init__(self) -> None:
        self.leftover = ""
        assert not BEHAVIOURS & TRANSFORMS.keys(), "a fault has one name"
        self.fault = ""
        self._ids = count(1)

    def app(self) -> Starlette:
        posts = {"/v1/chat/completions": "chat", "/v1/completions": "completions", "/v1/responses": "responses",
                 "/v1/messages": "messages"}  # fmt: skip
        routes = [Route(path, self._handler(surface), methods=["POST"]) for path, surface in posts.items()]
        routes += [Route("/v1/models", self._models), Route("/v1/models/{name}", self._model)]
        return Starlette(routes=routes, exception_handlers={HTTPException: self._refuse})

    def _handler(self, surface: str) -> Any:
        async def handle(request: Request) -> Response:
            self._authorize(request)
            body = await self._body(request)
            answer = self._answer(surface, body)
            headers = {"cache-control": "no-cache", "x-headrace-response-id": answer.id}
            given = request.headers.get("x-request-id", "")
            if (0 < len(given) <= 128 and self.fault != "no_request_id") or self.fault == "any_request_id":
                headers["x-request-id"] = given
            if body.get("stream"):
                return self._streaming(surface, answer, headers)
            if answer.failed:
                return JSONResponse({"error": {**wire.ERROR, "response_id": answer.id}}, 500, headers)
            return JSONResponse(_whole(surface, answer, self.fault), headers=headers)

        return handle

    def _authorize(self, request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if given == ("" if self.fault == "no_key_needed" else API_KEY) or (given and self.fault == "any_key"):
            return
        if given != API_KEY:
            raise Refused(401, "no such key")

    async def _body(self, request: Request) -> dict[str, Any]:
        content = bytearray()
        async for piece in request.stream():
            content += piece
            if len(content) > MAX_BODY_BYTES:
                raise Refused(413, "the body is too large")
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            raise Refused(400, "the body is no JSON") from None
        if not isinstance(body, dict):
            raise Refused(400, "the body is no object")
        if self.fault == "null_refused" and body.get("seed", 0) is None:
            raise Refused(400, "null is no value")
        if self.fault == "unknown_refused" and "foo" in body:
            raise Refused(400, "foo is unknown", "foo")
        return {key: value for key, value in body.items() if value is not None}

    def _answer(self, surface: str, body: dict[str, Any]) -> wire.Answer:
        prompt = body.get("prompt") or body.get("input") or ""
        if surface in ("chat", "messages"):
            if (refused := refusal(body)) and refused[0] != BAD_VALUE_TAKEN.get(self.fault):
                raise Refused(400, refused[1], refused[0] if self.fault != "nameless" else None)
            prompt = content_of(body["messages"][-1]) or ""
        if body.get("model") != MODEL and self.fault != "any_model":
            raise Refused(404, "no such model", "model")
        limit = _limit(body) + (self.fault == "limit_off_by_one")
        stop = body.get("stop") or []
        stops = [stop] if isinstance(stop, str) else stop
        number = next(self._ids)
        name = f"resp-{number % 8 if self.fault == 'short_ids' else number}"
        if self.fault == "unseeded" and body.get("temperature") == 1.0:
            prompt = name
        n = body.get("n", 1)
        texts = [write(play(prompt, limit), stops if choice == 0 or self.fault != "stop_first_choice_only" else [],
                       self.fault) for choice in range(n if n in range(1, 129) else 1)]  # fmt: skip
        usage = (body.get("stream_options") or {}).get("include_usage", False)
        return wire.Answer(name, MODEL, texts, len(prompt.encode()) + 4, usage, bool(body.get("logprobs")))

    def _streaming(self, surface: str, answer: wire.Answer, headers: dict[str, str]) -> Response:
        written = WRITERS[surface](answer) if surface in WRITERS else wire.chunks(answer, surface)
        transform = TRANSFORMS.get(self.fault)
        wires: Wires = list(written)
        if transform is not None:
            wires = transform(surface, answer, wires)
        kind = "application/x-ndjson" if self.fault == "content_type" else "text/event-stream"
        if self.fault == "cacheable":
            headers["cache-control"] = "public"
        return StreamingResponse(self._sent(wires), media_type=kind, headers=headers)

    async def _sent(self, wires: Wires) -> AsyncIterator[bytes]:
        """The bytes of a stream. ``held_back`` keeps them to its end; ``leftovers`` gives the next stream the rest."""
        held, num_sent = list[bytes](), 0
        leftover, self.leftover = self.leftover, ""
        try:
            for delay_s, name, content in wires:
                if delay_s:
                    await asyncio.sleep(delay_s)
                held.append(wire.encoded(name, content, leftover))
                leftover = "" if text_of(content) else leftover
                if self.fault != "held_back":
                    yield held.pop()
                num_sent += 1
            for piece in held:
                yield piece
        finally:
            if self.fault == "leftovers":
                self.leftover = "".join(text_of(content) for _, _, content in wires[num_sent + 1 :])

    async def _models(self, request: Request) -> Response:
        self._authorize(request)
        return JSONResponse({"data": [MODEL_OBJECT], **({} if self.fault == "bare_list" else {"object": "list"})})

    async def _model(self, request: Request) -> Response:
        self._authorize(request)
        if request.path_params["name"] != MODEL:
            raise Refused(404, "no such model", "model")
        return JSONResponse(MODEL_OBJECT)

    async def _refuse(self, request: Request, error: Any) -> Response:
        if not isinstance(error, Refused):
            self._authorize_path(request)
        status = 401 if getattr(request.state, "stranger", False) else error.status_code
        if self.fault == "plain_errors":
            return JSONResponse({"detail": error.detail}, status)
        body = {"message": error.detail, "type": "invalid_request_error", "param": getattr(error, "param", None)}
        return JSONResponse({"error": {**body, "code": None}}, status)

    def _authorize_path(self, request: Request) -> None:
        try:
            self._authorize(request)
        except Refused:
            request.state.stranger = True


def _limit(body: dict[str, Any]) -> int:
    given = (body.get(name) for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"))
    return next((limit for limit in given if isinstance(limit, int)), 1024)


BAD_VALUE_TAKEN = {"takes_bad_n": "n", "takes_bad_seed": "seed"}


def _whole(surface: str, answer: wire.Answer, fault: str) -> dict[str, Any]:
    if surface == "responses":
        return wire.response(answer, "completed")
    texts = ["".join(delta[1] for delta in text.deltas) for text in answer.texts]
    base = {"id": answer.id, "created": 1700000000, "model": answer.model, "usage": answer.usage()}
    if fault == "whole_text_differs" and len(texts[0]) > 16:
        texts[0] = texts[0][:-1]
    rows = [{"index": at, "logprobs": None, "finish_reason": answer.texts[at].reason} for at in range(len(texts))]
    if surface == "completions":
        return {**base, "object": "text_completion", "choices": [
            {**row, "text": text} for row, text in zip(rows, texts, strict=True)]}  # fmt: skip
    return {**base, "object": "chat.completion", "choices": [
        {**row, "message": {"role": "assistant", "content": text, "refusal": None}}
        for row, text in zip(rows, texts, strict=True)]}  # fmt: skip


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serves an ASGI application from a thread; yields its origin."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off", loop="asyncio")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
