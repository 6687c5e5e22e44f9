"""Page groups on the wire: protobuf's own reading and writing agrees, and what is no group is an error."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import worker_pb2
from headrace_worker.page_groups import decode, encode
from headrace_worker.transfer.shape import HandOffError

_numbers = st.integers(0, 2**32 - 1)
_groups = st.builds(
    worker_pb2.PageGroup,
    transfer_id=st.text(max_size=200),
    generation=st.integers(0, 2**64 - 1),
    first_layer=_numbers,
    num_pages=_numbers,
    checksum=st.binary(max_size=16),
    last=st.booleans(),
    error=st.text(max_size=20),
    source_pages=st.lists(_numbers, max_size=40),
    waited_us=st.integers(0, 2**64 - 1),
)
_pieces = st.lists(st.binary(max_size=300), max_size=4)


@given(_groups, _pieces)
def test_protobuf_reads_what_is_written(group: worker_pb2.PageGroup, pieces: list[bytes]) -> None:
    message = encode(group, [memoryview(piece) for piece in pieces])
    group.payload = b"".join(pieces)
    assert worker_pb2.PageGroup.FromString(message) == group


@given(_groups, _pieces)
def test_what_protobuf_writes_is_read(group: worker_pb2.PageGroup, pieces: list[bytes]) -> None:
    group.payload = b"".join(pieces)
    arrived = decode(group.SerializeToString())
    assert bytes(arrived.payload) == group.payload
    group.payload = b""
    assert arrived.group == group


def test_a_payload_stays_where_it_came_in() -> None:
    message = encode(worker_pb2.PageGroup(transfer_id="t"), [b"p" * 100_000])
    assert decode(message).payload.obj is message


def test_fields_of_a_later_release_are_passed_over() -> None:
    later = b"\xa0\x06\x01" + b"\xa9\x06" + bytes(8) + b"\xb5\x06" + bytes(4) + b"\xba\x06\x02xy"
    arrived = decode(encode(worker_pb2.PageGroup(num_pages=3)) + later + b"\x3a\x04pppp")
    assert (arrived.group.num_pages, bytes(arrived.payload)) == (3, b"pppp")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_group_or_an_error(message: bytes) -> None:
    with contextlib.suppress(HandOffError):
        decode(message)


@pytest.mark.parametrize("message", [b"\x3a\x05pppp", b"\x3a", b"\xff" * 12, b"\x3b", b"\x0a\x02\xff\xff"])
def test_what_is_no_group_is_an_error(message: bytes) -> None:
    with pytest.raises(HandOffError):
        decode(message)
