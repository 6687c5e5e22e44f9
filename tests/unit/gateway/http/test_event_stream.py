"""Writing a stream: keep-alives in silence, nothing held back, and a client that leaves ends the session."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace_gateway.http import event_stream
from headrace_gateway.http.chat_format import ChatStream
from headrace_gateway.http.event_stream import EventStream, leave_on_disconnect
from headrace_gateway.http.messages.format import MessageStream
from headrace_gateway.parsed_stream import ParsedEvent
from tests.unit.gateway.http.fakes import HEAD, FakeSession, asked, delta, ended


class Connection:
    """What an ASGI server gives: everything sent, and a way to go away."""

    def __init__(self) -> None:
        self.gone, self.sent = asyncio.Event(), asyncio.Event()
        self.bodies: list[bytes] = []
        self.headers: dict[bytes, bytes] = {}
        self.more = True

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.headers = dict(message["headers"])
            return
        assert self.more, "nothing follows the last body"
        self.more = message["more_body"]
        self.bodies.append(message["body"])
        self.sent.set()

    async def has(self, part: bytes) -> None:
        async with asyncio.timeout(5.0):
            while not any(part in body for body in self.bodies):
                self.sent.clear()
                await self.sent.wait()


class Script:
    """Events that a test lets go one by one."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[ParsedEvent] = asyncio.Queue()
        self.put = self._queue.put_nowait

    async def batches(self) -> AsyncIterator[list[ParsedEvent]]:
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            yield batch
            if type(batch[-1]).__name__ == "Terminal":
                return


def start(form: Any) -> "tuple[FakeSession, Script, Connection, asyncio.Task[None]]":
    script, connection = Script(), Connection()
    session: Any = FakeSession()
    watching = asyncio.create_task(leave_on_disconnect(connection.receive, session))
    response = EventStream(session, form, script.batches(), {"x-request-id": "mine"}, watching)
    task = asyncio.create_task(response({"type": "http"}, connection.receive, connection.send))
    return session, script, connection, task


@pytest.mark.parametrize(
    ("form", "keep_alive"),
    [(ChatStream, b": keep-alive\n\n"), (MessageStream, b'event: ping\ndata: {"type":"ping"}\n\n')],
)
async def test_silence_is_filled(monkeypatch: pytest.MonkeyPatch, form: Any, keep_alive: bytes) -> None:
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", 0.02)
    _, script, connection, task = start(form(HEAD, asked()))
    await connection.has(keep_alive)  # before the first delta
    script.put(delta("a"))
    await connection.has(b'"a"')
    connection.bodies.clear()
    await connection.has(keep_alive)  # and in a gap
    script.put(ended())
    await task
    num_written = len(connection.bodies)
    await asyncio.sleep(0.06)
    assert len(connection.bodies) == num_written and not connection.more


async def test_nothing_is_held_back_and_headers_say_what_it_is() -> None:
    session, script, connection, task = start(ChatStream(HEAD, asked()))
    for text in ("a", "b"):
        script.put(delta(text))
        await connection.has(f'"{text}"'.encode())
    script.put(ended())
    await task
    assert connection.bodies[-2:] == [b"data: [DONE]\n\n", b""]
    assert connection.headers[b"content-type"].startswith(b"text/event-stream")
    assert connection.headers[b"x-request-id"] == b"mine"
    assert b"content-length" not in connection.headers
    assert session.left  # after the end this does nothing


async def test_what_is_there_together_is_written_at_once_and_the_bytes_are_the_same() -> None:
    form, alone = ChatStream(HEAD, asked()), ChatStream(HEAD, asked())
    _, script, connection, task = start(form)
    events: list[ParsedEvent] = [delta("a"), delta("b"), delta("c", choice=1), ended()]
    for event in events:
        script.put(event)
    await task
    assert connection.bodies == [alone.opening(), b"".join(alone.written(event) for event in events), b""]


async def test_a_client_that_leaves_ends_the_session() -> None:
    session, script, connection, task = start(ChatStream(HEAD, asked()))
    script.put(delta("a"))
    await connection.has(b'"a"')
    connection.gone.set()
    await asyncio.wait_for(session.has_left.wait(), 5.0)
    assert session.left == ["disconnect"]
    script.put(ended("cancelled", "disconnect"))
    await task
