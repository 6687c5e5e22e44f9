"""The log shows who disagrees and who waits, and takes nothing for either that is neither."""

from __future__ import annotations

import time

from headrace_worker.parallel.flight_log import FlightLog, FlightRecorder, Line


def recorders(num_ranks: int) -> tuple[FlightLog, list[FlightRecorder]]:
    log = FlightLog(num_ranks)
    return log, [FlightRecorder(FlightLog(num_ranks, log.fd), rank) for rank in range(num_ranks)]


def test_ranks_at_the_same_collective_must_agree() -> None:
    log, (first, second) = recorders(2)
    first.enter("all_reduce", 4096)
    assert log.mismatch([0, 1]) is None, "rank 1 has not come there yet"
    second.enter("all_reduce", 2048)
    assert log.mismatch([0, 1]) == (
        "rank 0 is at all_reduce number 1 of 4096 bytes and rank 1 at all_reduce number 1 of 2048 bytes"
    )
    second.leave()
    second.enter("gather", 10)
    assert log.mismatch([0, 1]) is None
    assert log.mismatch([0]) is None


def test_only_who_is_inside_can_be_stuck() -> None:
    log, (first, second) = recorders(2)
    first.enter("all_reduce", 64)
    first.leave()
    assert log.stuck([0, 1], 0.0) is None
    line = log.line(1)._replace(number=2, kind=2, num_bytes=8, since_ns=time.monotonic_ns() - 3_000_000_000)
    log.write(1, line)
    assert log.stuck([0, 1], 5.0) is None
    told = "rank 0 after all_reduce number 1 of 64 bytes, rank 1 in gather number 2 of 8 bytes"
    assert log.stuck([0, 1], 2.0) == f"a collective takes over 2 s: {told}"
    assert log.stuck([0], 2.0) is None
    assert second is not None


def test_seconds_add_up() -> None:
    log, (recorder,) = recorders(1)
    assert log.line(0) == Line()
    recorder.add_busy(0.5)
    for _ in range(2):
        recorder.enter("all_reduce", 8)
        recorder.leave()
    recorder.add_busy(0.25)
    line = log.line(0)
    assert (line.number, line.busy_ns, line.since_ns) == (2, 750_000_000, 0)
    assert 0 < line.collective_ns < 1_000_000_000 and recorder.collective_s == line.collective_ns / 1e9
