"""Load on streaming servers from a process of its own: `python -m benchmarks.stream_load {JSON}` prints a JSON result.

HTTP goes over bare sockets, so that reading costs little beside the server that is measured. Knows no server.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

import grpc

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import inference_pb2_grpc
from headrace_kit.channels import client_options

Seen: TypeAlias = "tuple[float, int, int]"
"""Seconds to the first text, events, bytes."""


async def http_stream(target: str, head: bytes, body: bytes) -> Seen:
    """Seconds to the first text, events, bytes of one streamed answer."""
    host, _, port = target.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    started = time.perf_counter()
    writer.write(head + body)
    first, num_events, num_bytes, tail = 0.0, 0, 0, b""
    while data := await reader.read(65536):
        num_events += data.count(b"data: ")
        num_bytes += len(data)
        if not first and b'"content":"' in (text := (tail + data).replace(b'"content":""', b"")) and text:
            first = time.perf_counter() - started
        tail = data[-16:]
        if b"[DONE]" in tail + data[-64:]:
            break
    writer.close()
    assert first, f"no streamed answer: {data[:300]!r}"
    return first, num_events, num_bytes


def http_head(target: str, key: str, size: int) -> bytes:
    lines = (
        "POST /v1/chat/completions HTTP/1.1",
        f"host: {target}",
        f"authorization: Bearer {key}",
        "content-type: application/json",
        f"content-length: {size}",
        "connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode()


async def grpc_stream(stub: Any, request: pb.GenerateRequest, metadata: Any) -> Seen:
    started = time.perf_counter()
    first, num_events, num_bytes = 0.0, 0, 0
    async for event in stub.Generate(request, metadata=metadata):
        if not first and event.WhichOneof("event") == "delta":
            first = time.perf_counter() - started
        num_events += 1
        num_bytes += event.ByteSize()
    return first, num_events, num_bytes


def prepare(spec: dict[str, Any], channel: grpc.aio.Channel) -> Callable[[], Coroutine[Any, Any, Seen]]:
    """One stream of the protocol that the spec names."""
    if spec["protocol"] == "grpc":
        stub: Any = inference_pb2_grpc.InferenceStub(channel)
        request = pb.GenerateRequest(model=spec["model"], max_output_tokens=spec["max_tokens"])
        request.chat.messages.add(role="user", content=spec["text"])
        return partial(grpc_stream, stub, request, (("authorization", f"Bearer {spec['key']}"),))
    message = {"role": "user", "content": spec["text"]}
    fields = {"model": spec["model"], "messages": [message], "stream": True, "max_tokens": spec["max_tokens"]}
    body = json.dumps(fields).encode()
    return partial(http_stream, spec["target"], http_head(spec["target"], spec["key"], len(body)), body)


async def run(spec: dict[str, Any]) -> dict[str, Any]:
    """`num` streams at once, or `rate` per second for `num` streams in all."""
    channel = grpc.aio.insecure_channel(spec["target"], client_options(spec["target"]))
    one = prepare(spec, channel)
    started = time.perf_counter()
    tasks = []
    for number in range(spec["num"]):
        if spec.get("rate"):
            await asyncio.sleep(max(0.0, started + number / spec["rate"] - time.perf_counter()))
        tasks.append(asyncio.create_task(one()))
    results = await asyncio.gather(*tasks)
    await channel.close()
    return {
        "first_s": sorted(result[0] for result in results),
        "num_events": sum(result[1] for result in results),
        "num_bytes": sum(result[2] for result in results),
        "elapsed_s": time.perf_counter() - started,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.loads(sys.argv[1])))))
