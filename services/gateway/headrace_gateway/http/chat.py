"""POST /v1/chat/completions: one session, written as a stream or as one answer."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from headrace_gateway.front import Front
from headrace_gateway.http.body import read_object
from headrace_gateway.http.chat_format import DONE, ChatFormat, choice_object
from headrace_gateway.http.chat_request import ChatRequest, parse_chat
from headrace_gateway.http.errors import error_event, error_response
from headrace_gateway.http.headers import client_request_id, credential, response_headers
from headrace_gateway.lifecycle import outputs
from headrace_gateway.session import ClientEvent, Session
from headrace_kit.errors import REASONS, HeadraceError


class ChatEndpoint:
    """The handler; errors raised here become error bodies in the app."""

    def __init__(self, front: Front, max_body_bytes: int) -> None:
        self._front, self._max_body_bytes = front, max_body_bytes

    async def handle(self, request: Request) -> Response:
        await self._front.identify(credential(request))
        chat = parse_chat(await read_object(request, self._max_body_bytes))
        chat.generate.client_request_id = client_request_id(request)
        chat.generate.retry_of = request.headers.get("x-headrace-retry-of", "")
        session = await self._front.open(chat.generate, credential(request), None)
        events = session.stream()
        try:
            with _leave_on_disconnect(request, session):
                created = await anext(events)
                if not chat.stream:
                    return await _whole(session, chat, events)
        except BaseException:
            session.leave("disconnect")
            raise
        assert isinstance(created, outputs.Created), "the first event of a session is Created"
        headers = response_headers(session)
        return StreamingResponse(_stream(session, chat, events), media_type="text/event-stream", headers=headers)


@contextlib.contextmanager
def _leave_on_disconnect(request: Request, session: Session) -> Any:
    """While nothing is being written, only the connection can say that the client went away."""
    watch = asyncio.create_task(_watch(request, session))
    try:
        yield
    finally:
        watch.cancel()


async def _watch(request: Request, session: Session) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    session.leave("disconnect")


async def _stream(session: Session, chat: ChatRequest, events: AsyncIterator[ClientEvent]) -> AsyncIterator[bytes]:
    form = _form(session, include_usage=chat.include_usage)
    try:
        for choice in range(session.prepared.bounds.n):
            yield form.role(choice)
        async for event in events:
            yield _written(form, event, chat.include_usage, session.response_id)
    finally:
        session.leave("disconnect")


def _written(form: ChatFormat, event: ClientEvent, include_usage: bool, response_id: str) -> bytes:
    """One event as the bytes of its chunks."""
    match event:
        case outputs.Delta():
            return form.delta(event.choice, event.text, event.logprobs)
        case outputs.ChoiceFinished():
            return form.finish(event.choice, event.reason)
        case outputs.Terminal() if event.kind in ("completed", "incomplete"):
            return (form.usage(event.usage) if include_usage else b"") + DONE
        case outputs.Terminal():
            return error_event(_error(event), response_id)
        case _:
            raise AssertionError(f"{event} is no event after created")


async def _whole(session: Session, chat: ChatRequest, events: AsyncIterator[ClientEvent]) -> Response:
    n = session.prepared.bounds.n
    texts: list[list[str]] = [[] for _ in range(n)]
    logprobs: list[list[Any]] = [[] for _ in range(n)]
    reasons = ["stop"] * n
    async for event in events:
        match event:
            case outputs.Delta():
                texts[event.choice].append(event.text)
                logprobs[event.choice].extend(event.logprobs)
            case outputs.ChoiceFinished():
                reasons[event.choice] = event.reason
            case outputs.Terminal() if event.kind in ("completed", "incomplete"):
                choices = [choice_object(i, "".join(texts[i]), reasons[i], logprobs[i]) for i in range(n)]
                body = _form(session, include_usage=False).completion(choices, event.usage)
                return JSONResponse(body, headers=response_headers(session))
            case outputs.Terminal():
                return error_response(_error(event), session.response_id)
    raise AssertionError("a session ends with a terminal")


def _form(session: Session, *, include_usage: bool) -> ChatFormat:
    return ChatFormat(session.response_id, session.prepared.model.name, int(time.time()), include_usage=include_usage)


def _error(event: outputs.Terminal) -> HeadraceError:
    return HeadraceError(event.reason, event.detail or REASONS[event.reason].meaning)
