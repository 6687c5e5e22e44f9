"""The slowest reader pays for the cap, and nobody else."""

from headrace_gateway.buffers import Buffers


class Stream:
    def __init__(self) -> None:
        self.buffered_bytes = 0
        self.ended = False

    def end_slow_client(self) -> None:
        self.ended = True


def test_what_is_read_leaves_the_sum() -> None:
    buffers, stream = Buffers(100), Stream()
    buffers.grew(stream, 60)
    buffers.shrank(stream, 50)
    buffers.grew(stream, 60)
    assert (buffers.total_bytes, stream.buffered_bytes, stream.ended) == (70, 70, False)


def test_over_the_cap_the_slowest_reader_ends() -> None:
    buffers, slow, quick = Buffers(100), Stream(), Stream()
    buffers.grew(slow, 70)
    buffers.grew(quick, 40)
    assert slow.ended and not quick.ended
    assert buffers.total_bytes == quick.buffered_bytes == 40


def test_more_cannot_be_read_than_waits() -> None:
    buffers, stream = Buffers(100), Stream()
    buffers.grew(stream, 10)
    buffers.shrank(stream, 50)
    assert (buffers.total_bytes, stream.buffered_bytes) == (0, 0)
