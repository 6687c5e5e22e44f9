"""The one handler behind every API that generates: one session, written as a stream or as one answer."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from headrace_gateway.arrival import Arrival
from headrace_gateway.front import Front, named
from headrace_gateway.http.answer import Answer
from headrace_gateway.http.api import Api, Asked, Head
from headrace_gateway.http.body import read_object
from headrace_gateway.http.errors import error_response, renamed, terminal_error
from headrace_gateway.http.event_stream import EventStream, leave_on_disconnect
from headrace_gateway.http.headers import credential, id_headers, response_headers, take_headers
from headrace_gateway.lifecycle import outputs
from headrace_gateway.parsed_stream import Batches, ParsedStream
from headrace_gateway.session import Session
from headrace_kit.errors import HeadraceError


class Endpoint:
    """Errors before `created` become the API's error bodies here."""

    def __init__(self, front: Front, api: Api, max_body_bytes: int) -> None:
        self._front, self._api, self._max_body_bytes = front, api, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._handle(request)
        await response(scope, receive, send)

    async def _handle(self, request: Request) -> Response:
        arrival = Arrival.now(request.headers)
        try:
            await self._front.identify(credential(request))
            asked = self._api.parse(await read_object(request, self._max_body_bytes))
        except HeadraceError as error:
            self._front.refused(error)
            return error_response(error, self._api, id_headers(request))
        try:
            return await self._answer(request, asked, arrival)
        except HeadraceError as error:
            return error_response(error, self._api, id_headers(request))

    async def count(self, request: Request) -> int:
        """Prompt tokens of a body of this API."""
        await self._front.identify(credential(request))
        asked = self._api.parse(await read_object(request, self._max_body_bytes))
        with _named(asked):
            return await self._front.count_tokens(asked.generate, credential(request))

    async def _answer(self, request: Request, asked: Asked, arrival: Arrival) -> Response:
        with _named(asked):
            deadline_s = take_headers(asked.generate, request)
            session = await self._front.open(asked.generate, credential(request), deadline_s, arrival)
            batches = ParsedStream(session).batches()
            watching = asyncio.create_task(leave_on_disconnect(request.receive, session))
            try:
                (created,) = await anext(batches)
                assert isinstance(created, outputs.Created), "the first event of a session is Created"
                head = _head(session)
                if asked.stream:
                    form = self._api.stream(head, asked)
                    return EventStream(session, form, batches, response_headers(session), watching)
                answer = await self._whole(session, head, asked, batches)
                watching.cancel()
                return answer
            except BaseException:
                watching.cancel()
                session.leave("disconnect")
                raise

    async def _whole(self, session: Session, head: Head, asked: Asked, batches: Batches) -> Response:
        answer = Answer(head.num_choices)
        async for batch in batches:
            for event in batch:
                answer.add(event)
        terminal = answer.terminal
        assert terminal is not None, "a session ends with a terminal"
        headers = response_headers(session)
        if terminal.kind not in ("completed", "incomplete"):
            return error_response(terminal_error(terminal), self._api, headers, session.response_id)
        return JSONResponse(self._api.whole(head, asked, answer), headers=headers)


def _head(session: Session) -> Head:
    prepared = session.prepared
    return Head(
        response_id=session.response_id,
        model=prepared.model.name,
        created_at_s=int(time.time()),
        num_choices=prepared.bounds.n,
        num_prompt_tokens=prepared.bounds.num_prompt_tokens,
    )


@contextlib.contextmanager
def _named(asked: Asked) -> Iterator[None]:
    """Errors name fields as the API does."""
    try:
        yield
    except HeadraceError as error:
        raise renamed(named(error, asked.generate), asked.names) from error
