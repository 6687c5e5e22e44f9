"""The floors that the gateway is held against: servers that do nothing but write the same messages from memory.

`python -m benchmarks.floors sse PORT FILE` answers every POST with the bytes of FILE, one write per SSE event;
`python -m benchmarks.floors grpc PORT FILE` streams the length-prefixed ResponseEvents of FILE to every Generate.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc
import uvicorn

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import inference_pb2_grpc


class SseFloor:
    """A bare ASGI app on the server that the gateway uses."""

    def __init__(self, content: bytes) -> None:
        self._chunks = [part + b"\n\n" for part in content.split(b"\n\n") if part]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "POST":
            while (await receive()).get("more_body"):
                pass
            await self._stream(send)
        else:
            await _answer(send, b'{"object":"list","data":[{"id":"scripted","object":"model"}]}')

    async def _stream(self, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _answer(send: Any, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})


class GrpcFloor(inference_pb2_grpc.InferenceServicer):
    """A bare grpc.aio stream."""

    def __init__(self, events: list[pb.ResponseEvent]) -> None:
        self._events = events

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> Any:
        for event in self._events:
            yield event


def pack_events(events: list[pb.ResponseEvent]) -> bytes:
    return b"".join(len(raw).to_bytes(4, "little") + raw for raw in (event.SerializeToString() for event in events))


def unpack_events(content: bytes) -> list[pb.ResponseEvent]:
    events, at = [], 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "little")
        events.append(pb.ResponseEvent.FromString(content[at + 4 : at + 4 + size]))
        at += 4 + size
    return events


async def serve_grpc(port: int, events: list[pb.ResponseEvent]) -> None:
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServicer_to_server(GrpcFloor(events), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    kind, port, content = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).read_bytes()
    if kind == "sse":
        uvicorn.run(SseFloor(content), host="127.0.0.1", port=port, log_level="error", loop="uvloop", http="httptools")
    else:
        asyncio.run(serve_grpc(port, unpack_events(content)))


if __name__ == "__main__":
    main()
