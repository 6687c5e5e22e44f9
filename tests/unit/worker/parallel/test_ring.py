"""Every reader gets every message whole and in order, whatever its size; one that does not read holds the writer."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_worker.parallel.ring import RingReader, RingStalled, RingWriter


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=30), st.integers(min_value=1, max_value=3))
def test_messages_arrive_whole_and_in_order(messages: list[bytes], num_readers: int) -> None:
    """A ring of 64 bytes: most messages come in pieces, and pieces wrap around its end."""
    writer = RingWriter(num_readers, capacity=64)
    readers = [RingReader(writer.fd, writer.reader_fds[number], number, num_readers) for number in range(num_readers)]
    got: list[list[bytes | None]] = [[] for _ in readers]

    def read(number: int) -> None:
        got[number] = [readers[number].receive() for _ in messages]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(num_readers)]
    for thread in threads:
        thread.start()
    for message in messages:
        writer.send(message, 5.0)
    for thread in threads:
        thread.join()
    writer.close_reader_fds()
    writer.close()
    assert got == [messages] * num_readers


def test_a_rank_that_does_not_read_is_an_error_at_the_timeout() -> None:
    writer = RingWriter(2, capacity=64)
    awake = RingReader(writer.fd, writer.reader_fds[0], 0, 2)
    writer.send(b"x" * 20, 1.0)
    assert awake.receive() == b"x" * 20
    with pytest.raises(RingStalled):
        writer.send(b"y" * 60, 0.05)
    writer.close_reader_fds()
    writer.close()


def test_the_end_of_the_leader_ends_the_waiting() -> None:
    writer = RingWriter(1)
    bell = os.dup(writer.reader_fds[0])
    reader = RingReader(os.dup(writer.fd), bell, 0, 1)
    writer.close_reader_fds()
    writer.close()
    assert reader.receive() is None
    os.close(bell)
