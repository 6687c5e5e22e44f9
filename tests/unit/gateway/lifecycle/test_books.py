"""The balance of every response, whatever happens when: generated = output + discarded, and who pays for what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import policy_pb2
from headrace_gateway import messages
from headrace_gateway.lifecycle.events import Accepted, AttemptLost, ChoiceFinal, ClientGone, Routed, Tokens
from headrace_gateway.lifecycle.settlement import Prefill

from .drive import Drive, PaperWorker, decision

SCRIPTS = st.lists(st.sampled_from(["a", "b", "ab", 257, 0xF0, b"\x9f\x98\x80"]), max_size=8)


@given(SCRIPTS, st.sampled_from([(), ("b",), ("ab", "ba")]), st.integers(1, 3), st.integers(0, 2), st.integers(1, 9))
def test_a_response_that_runs_to_its_end_balances(
    script: list[str | bytes | int], stops: tuple[str, ...], n: int, lag: int, max_output: int
) -> None:
    drive = Drive(n)
    drive.accept()
    worker = PaperWorker(drive, script, stops, max_output=max_output, lag=lag)
    worker.run()
    counts = drive.settlement.counts
    assert sum(worker.generated) == counts.num_output + counts.num_discarded
    assert drive.terminal.usage.num_output_tokens == counts.num_output == counts.num_delivered
    assert drive.terminal.kind in ("completed", "incomplete")


@given(SCRIPTS, st.integers(0, 12), st.integers(1, 3), st.integers(0, 2))
def test_a_cancelled_response_is_charged_what_was_generated(
    script: list[str | bytes | int], steps: int, n: int, lag: int
) -> None:  # B64: the books equal the engine's counter
    drive = Drive(n)
    drive.accept()
    worker = PaperWorker(drive, script, lag=lag)
    for number in range(steps):
        worker.step(number % n)
    drive.feed(ClientGone("disconnect"))
    worker.run()
    counts = drive.settlement.counts
    assert counts.num_output == sum(worker.generated) and counts.num_discarded == 0
    assert drive.terminal.kind in ("completed", "incomplete", "cancelled")


@given(st.integers(0, 3), st.integers(0, 5))
def test_a_moved_response_discards_what_the_lost_worker_generated(hidden: int, late: int) -> None:
    drive = Drive()
    drive.accept()
    lost = PaperWorker(drive, [0xF0, 0x9F, 0x98])
    for _ in range(hidden):
        lost.step()
    drive.feed(AttemptLost(1), Routed(2, decision(2)))
    drive.feed(ChoiceFinal(1, 0, "cancelled", "superseded", hidden + late))
    drive.feed(Accepted(2))
    worker = PaperWorker(drive, ["x", "y"])
    worker.run()
    counts = drive.settlement.counts
    assert (counts.num_output, counts.num_old_attempt) == (3, hidden + late)


def test_who_computed_the_prompt_is_in_the_books() -> None:
    drive = Drive(2)
    drive.accept()
    drive.feed(Tokens(1, 0, 1, "a", 1), ChoiceFinal(1, 1, "stop", "", 1, device_us=5))
    drive.feed(ChoiceFinal(1, 0, "stop", "", 2, device_us=7, prefill=Prefill("p", "e9", 40)))
    settled = messages.settlement(drive.settlement, policy_pb2.Reservation(response_id="r"), 1)
    (attempt,) = settled.attempts
    assert (attempt.device_us, attempt.prefill.id, attempt.prefill.epoch, attempt.prefill_device_us) == (
        12,
        "p",
        "e9",
        40,
    )
