"""Page groups on the wire: messages of the contract, put together and taken apart without a copy of their pages.

A message is PageGroup's other fields, as protobuf writes them, and then the payload as its last field; fields may come
in any order, so any protobuf reads what this writes, and this reads what any protobuf writes. Protobuf itself would
copy a payload two times on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from headrace.v1 import worker_pb2
from headrace_kit.listeners import GrpcListener
from headrace_worker.transfer.shape import HandOffError
from headrace_worker.transfer.transport import Buffer

_SERVICE = "headrace.v1.KvTransfer"
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_TAG = worker_pb2.PageGroup.DESCRIPTOR.fields_by_name["payload"].number << 3 | _LENGTH
# A pull reads large messages: in large frames, into large slices.
CHANNEL_OPTIONS: dict[str, int] = {
    "grpc.http2.max_frame_size": 16 * 1024 * 1024 - 1,
    "grpc.experimental.tcp_read_chunk_size": 1024 * 1024,
    "grpc.experimental.tcp_min_read_chunk_size": 1024 * 1024,
    "grpc.experimental.tcp_max_read_chunk_size": 4 * 1024 * 1024,
}


class Arrived(NamedTuple):
    """A group and its payload, which lies in the message that came in; the group's own is empty."""

    group: worker_pb2.PageGroup
    payload: memoryview


def encode(group: worker_pb2.PageGroup, payload: Sequence[Buffer] = ()) -> bytes:
    """The message of a group without payload and the pieces of one."""
    assert not group.payload, "a payload travels beside its group"
    num_bytes = sum(memoryview(piece).nbytes for piece in payload)
    head = group.SerializeToString()
    return b"".join((head, _varint(_TAG), _varint(num_bytes), *payload)) if num_bytes else head


def decode(message: bytes) -> Arrived:
    """Raises HandOffError if this is no page group."""
    whole, rest = memoryview(message), []
    at, payload = 0, whole[:0]
    try:
        while at < len(whole):
            start = at
            key, at = _read_varint(whole, at)
            first, at = _value(whole, key & 7, at)
            if key == _TAG:
                payload = whole[first:at]
            else:
                rest.append(whole[start:at])
        group = worker_pb2.PageGroup.FromString(b"".join(rest))
    except (IndexError, DecodeError) as error:
        raise HandOffError("a message is no page group") from error
    return Arrived(group, payload)


def open_pull(channel: grpc.aio.Channel) -> Any:
    """A call of KvTransfer.Pull whose responses are messages as they came, for `decode`."""
    method: Any = channel.stream_stream(
        f"/{_SERVICE}/Pull", request_serializer=worker_pb2.PullCommand.SerializeToString, response_deserializer=None
    )
    return method()


def add_pull_handler(server: grpc.aio.Server | GrpcListener, pull: Any) -> None:
    """Serves KvTransfer.Pull by `pull`, an async generator of messages that `encode` made."""
    method: Any = grpc.stream_stream_rpc_method_handler(
        pull, request_deserializer=worker_pb2.PullCommand.FromString, response_serializer=None
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Pull": method}),))


async def read(call: Any) -> Arrived | None:
    """The next group of a pull; None at the end."""
    message = await call.read()
    return None if message is grpc.aio.EOF else decode(message)


async def drain(call: Any) -> None:
    """Until the other side has ended the stream."""
    while await call.read() is not grpc.aio.EOF:
        pass


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(whole: memoryview, at: int) -> tuple[int, int]:
    """Number, and where it ends. Raises IndexError at the end of the message."""
    number = 0
    for shift in range(0, 70, 7):
        byte = whole[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise IndexError("a varint of more than ten bytes")


def _value(whole: memoryview, kind: int, at: int) -> tuple[int, int]:
    """Where a field's value begins and ends."""
    if kind == _VARINT:
        return at, _read_varint(whole, at)[1]
    num_bytes = {_FIXED64: 8, _FIXED32: 4}.get(kind)
    if kind == _LENGTH:
        num_bytes, at = _read_varint(whole, at)
    if num_bytes is None or at + num_bytes > len(whole):
        raise IndexError("a field of an unknown kind, or one that does not end")
    return at, at + num_bytes
