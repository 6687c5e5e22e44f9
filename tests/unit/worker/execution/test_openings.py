"""What waits to be opened is settled once: by what came of it, by a cancel, or by its deadline."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_worker.execution.openings import Openings
from headrace_worker.execution.runner import Opened, Opening, Rejected
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.request import Request


@dataclass(eq=False)
class FakeOpening(Opening):
    result: Opened | Rejected | None = None

    def outcome(self) -> Opened | Rejected | None:
        return self.result


def add(openings: Openings, name: str, n: int = 1, deadline_s: float | None = None) -> FakeOpening:
    opening = FakeOpening()
    openings.add(Request(1, name, 1, (5,), 8, n, queue_deadline_s=deadline_s), opening, 100.0)
    return opening


def test_one_that_is_known_is_settled_once_whatever_came_first() -> None:
    openings = Openings()
    slow, quick = add(openings, "slow"), add(openings, "quick")
    quick.result = Opened()
    assert [(each.request.response_id, each.outcome) for each in openings.settle(101.0)] == [("quick", Opened())]
    assert openings.settle(102.0) == []
    slow.result = Rejected("invalid_grammar", "grammar", "why")
    assert [each.outcome for each in openings.settle(103.0)] == [slow.result]
    assert len(openings) == 0


def test_the_time_counts_against_the_queue_deadline() -> None:
    openings = Openings()
    opening = add(openings, "r", deadline_s=5.0)
    opening.result = Opened()
    (settled,) = openings.settle(103.0)
    assert settled.request.queue_deadline_s == 2.0


def test_the_deadline_refuses_and_can_be_tried_again() -> None:
    openings = Openings()
    add(openings, "r", deadline_s=5.0)
    assert openings.settle(104.9) == []
    (settled,) = openings.settle(105.0)
    assert isinstance(settled.outcome, Rejected)
    assert (settled.outcome.reason, settled.outcome.retry_after_s) == ("queue_deadline", 1.0)


def test_a_cancel_ends_it_by_its_reason() -> None:
    openings = Openings()
    add(openings, "r", n=2)
    openings.cancel(Cancel("other"))
    openings.cancel(Cancel("r", attempt=2))
    assert openings.settle(101.0) == []
    openings.cancel(Cancel("r", attempt=1, reason="disconnect"))
    (settled,) = openings.settle(101.0)
    assert isinstance(settled.outcome, Rejected) and settled.outcome.reason == "disconnect"


def test_a_cancel_of_one_choice_travels_on() -> None:
    openings = Openings()
    opening = add(openings, "r", n=2)
    cancel = Cancel("r", choice=1)
    openings.cancel(cancel)
    assert openings.settle(101.0) == []
    opening.result = Opened()
    (settled,) = openings.settle(102.0)
    assert (settled.outcome, settled.cancels) == (Opened(), (cancel,))


def test_every_choice_cancelled_one_by_one_is_the_response_cancelled() -> None:
    openings = Openings()
    add(openings, "r", n=2)
    for choice in (0, 1):
        openings.cancel(Cancel("r", choice=choice, reason="slow_client"))
    (settled,) = openings.settle(101.0)
    assert isinstance(settled.outcome, Rejected) and settled.outcome.reason == "slow_client"
