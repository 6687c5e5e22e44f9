"""Where the time of steps went, and what a sequence saw of them."""

from __future__ import annotations

import pytest

from headrace_worker.execution.step_log import SequenceNotes, StepLog
from headrace_worker.scheduling.plan import Plan, PlanRow


def row(handle: int, num_tokens: int = 1, *, samples: bool = True) -> PlanRow:
    return PlanRow(handle, (7,) * num_tokens, 0, (1,), (handle,) if samples else (), 0, 0)


def plan(step: int, *rows: PlanRow) -> Plan:
    return Plan(step, rows)


def test_a_step_is_split_into_plan_forward_sample_and_the_gap_before_it() -> None:
    log = StepLog()
    log.planned(0.001)
    first = log.ended(plan(0, row(1), row(2)), (10.0, 10.5), 0.1, 0.0)
    assert first.plan_s == 0.001 and first.host_gap_s == 0.0 and (first.num_rows, first.num_tokens) == (2, 2)
    assert first.forward_s == pytest.approx(0.4) and first.sample_s == 0.1
    log.planned(0.002)
    second = log.ended(plan(1, row(1)), (10.53, 10.6), 0.0, 0.0)
    assert second.host_gap_s == pytest.approx(0.028)  # what of the wait was not planning


def test_a_rest_is_no_gap() -> None:
    log = StepLog()
    log.ended(plan(0, row(1)), (1.0, 2.0), 0.0, 0.0)
    log.rested()
    assert log.ended(plan(1, row(1)), (60.0, 61.0), 0.0, 0.0).host_gap_s == 0.0


def test_a_sequence_saw_its_chunks_its_neighbours_and_its_share_of_collectives() -> None:
    log = StepLog()
    log.ended(plan(0, row(9)), (0.0, 1.0), 0.0, 0.5)  # before its time
    log.ended(plan(1, row(1, 16, samples=False), row(9)), (1.0, 2.0), 0.0, 0.25)
    log.ended(plan(2, row(1, 4), row(9)), (2.0, 3.0), 0.0, 0.25)
    for step in range(3, 13):
        log.ended(plan(step, row(1), *(row(20 + n) for n in range(step - 3))), (3.0, 4.0), 0.0, 0.01)
    seen = log.take(1)
    assert seen[:3] == (2, 6, 10) and seen.collective_s == pytest.approx(0.6)
    assert log.take(1) == SequenceNotes()


def test_one_that_never_decoded_has_only_chunks() -> None:
    log = StepLog()
    log.ended(plan(0, row(1, 16, samples=False)), (0.0, 1.0), 0.0, 0.0)
    assert log.take(1) == SequenceNotes(num_chunks=1)
