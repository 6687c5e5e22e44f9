"""A mailbox merges per sequence whatever its reader has not taken."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import worker_pb2
from headrace_worker.mailbox import Mailbox


@given(st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3))))
def test_a_frame_holds_every_token_in_order_and_each_handle_once(steps: list[tuple[int, list[int]]]) -> None:
    mailbox = Mailbox()
    expected: dict[int, list[int]] = {}
    for number, (handle, ids) in enumerate(steps, 1):
        mailbox.note_step(number)
        mailbox.put_tokens(handle, ids)
        expected.setdefault(handle, []).extend(ids)
    frame = mailbox.take("e")
    assert list(frame.handles) == list(expected)
    assert list(frame.num_tokens) == [len(ids) for ids in expected.values()]
    assert array("I", frame.token_ids).tolist() == [token for ids in expected.values() for token in ids]
    assert (frame.first_step, frame.last_step) == ((1, len(steps)) if steps else (0, 0))


def test_what_was_taken_does_not_come_again() -> None:
    mailbox = Mailbox()
    mailbox.put_tokens(1, [5])
    mailbox.put_progress(1, 10)
    mailbox.put_progress(1, 20)
    mailbox.put_final(worker_pb2.Final(handle=1))
    first, second = mailbox.take("e"), mailbox.take("f")
    assert [progress.num_prefilled_tokens for progress in first.progress] == [20]
    assert (len(first.finals), len(second.finals), len(second.handles), second.token_ids) == (1, 0, 0, b"")
    assert (first.seq, second.seq, second.epoch) == (0, 1, "f")
    assert mailbox.empty


async def test_waiting_ends_when_something_comes() -> None:
    mailbox = Mailbox()
    await mailbox.wait(0.001)
    assert mailbox.empty
    mailbox.put_tokens(1, [1])
    await mailbox.wait(60)
    assert not mailbox.empty
