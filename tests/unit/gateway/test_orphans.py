"""The books of a lost gateway's responses: settled once all choices are in, acknowledged only then."""

import asyncio
from typing import Any

import pytest

from headrace.v1 import policy_pb2, response_pb2, routing_pb2
from headrace.v1 import worker_pb2 as pb
from headrace_gateway.orphans import OrphanSettler
from tests.meters import Moved

RAN_ON = response_pb2.ReplicaRef(id="w", epoch="e")


class FakeSettler:
    """Policy as far as it answers: the first settlement of an id stands."""

    def __init__(self) -> None:
        self.requests: list[policy_pb2.SettleRequest] = []
        self.is_away = False

    async def settle(self, request: policy_pb2.SettleRequest) -> policy_pb2.SettleResponse | None:
        known = {one.reservation.response_id for one in self.requests}
        self.requests.append(request)
        is_new = request.reservation.response_id not in known
        state = policy_pb2.SettleResponse.STATE_APPLIED if is_new else policy_pb2.SettleResponse.STATE_DUPLICATE
        return None if self.is_away else policy_pb2.SettleResponse(state=state)


class FakeRouter:
    def __init__(self) -> None:
        self.outcomes: list[routing_pb2.AttemptOutcome] = []

    def report(self, outcome: routing_pb2.AttemptOutcome) -> None:
        self.outcomes.append(outcome)


class FakeLink:
    def __init__(self, settler: FakeSettler) -> None:
        self._settler = settler
        self.acknowledged: list[tuple[str, int, int]] = []

    def acknowledge(self, response_id: str, attempt: int, *, traced: bool) -> None:
        assert traced, "a response that lost its gateway has failed: its trace is kept"
        self.acknowledged.append((response_id, attempt, len(self._settler.requests)))


def orphan(choice: int, gateway_id: str = "lost", n: int = 2, attempt: int = 1) -> pb.Orphan:
    held = policy_pb2.Reservation(response_id="r", gateway_id=gateway_id)
    final = pb.Final(
        response_id="r",
        attempt=attempt,
        choice=choice,
        num_prompt_tokens=22,
        num_generated_tokens=5,
        num_accepted_tokens=4,
        num_late_tokens=1,
        device_us=10,
    )
    return pb.Orphan(
        final=final, gateway_id=gateway_id, n=n, reservation=held.SerializeToString(), decision_id="d", replica=RAN_ON
    )


def make(router: FakeRouter | None = None) -> tuple[Any, FakeSettler, Any]:
    settler = FakeSettler()
    adopter: Any = OrphanSettler(settler, router or FakeRouter(), "mine")  # type: ignore[arg-type]
    return adopter, settler, FakeLink(settler)


async def test_a_response_is_settled_when_its_last_choice_is_in() -> None:
    adopter, settler, link = make()
    adopted = Moved("orphans_settled_total")
    adopter.take(link, [orphan(0)])
    await asyncio.sleep(0)
    assert not settler.requests
    adopter.take(link, [orphan(0), orphan(1)])
    for _ in range(3):
        await asyncio.sleep(0)
    (request,) = settler.requests
    assert link.acknowledged == [("r", 1, 1)] and adopted() == 1
    assert (request.kind, request.reason) == (response_pb2.TERMINAL_KIND_FAILED, "gateway_lost")
    assert request.source == policy_pb2.SETTLEMENT_SOURCE_ORPHAN and request.created
    assert (request.num_prompt_tokens, request.num_output_tokens) == (22, 8)
    assert request.discarded.num_late_step_tokens == 2
    generated = sum(attempt.num_generated_tokens for attempt in request.attempts)
    assert generated == request.num_output_tokens + request.discarded.num_late_step_tokens


async def test_ones_own_are_only_acknowledged() -> None:
    adopter, settler, link = make()
    adopter.take(link, [orphan(0, gateway_id="mine", n=1)])
    await asyncio.sleep(0)
    assert link.acknowledged == [("r", 1, 0)] and not settler.requests


async def test_the_process_that_ran_it_is_in_the_books() -> None:
    adopter, settler, link = make()
    adopter.take(link, [orphan(0, n=1)])
    for _ in range(3):
        await asyncio.sleep(0)
    assert [attempt.replica for attempt in settler.requests[0].attempts] == [RAN_ON]


async def test_so_is_the_replica_that_computed_the_prompt() -> None:
    adopter, settler, link = make()
    first = orphan(0)
    first.final.prefill.id, first.final.prefill_device_us = "p", 40
    adopter.take(link, [orphan(1), first])
    for _ in range(3):
        await asyncio.sleep(0)
    (attempt,) = settler.requests[0].attempts
    assert (attempt.prefill.id, attempt.prefill_device_us, attempt.device_us) == ("p", 40, 20)


async def test_the_router_hears_that_it_is_over_and_whose_fault_it_is_not() -> None:
    router = FakeRouter()
    adopter, _, link = make(router)
    adopter.take(link, [orphan(0), orphan(1)])
    for _ in range(3):
        await asyncio.sleep(0)
    (told,) = router.outcomes
    assert (told.decision_id, told.outcome, told.reason) == ("d", "failed", "gateway_lost")
    assert told.num_generated_tokens == 10


async def test_every_attempt_of_a_response_reaches_the_books_of_its_replica() -> None:
    """The response was moved before its gateway died: both replicas have finals of it."""
    adopter, settler, link = make()
    for attempt in (2, 1):
        adopter.take(link, [orphan(0, n=1, attempt=attempt)])
        for _ in range(4):
            await asyncio.sleep(0)
    whole, duplicate, beside = settler.requests
    assert (whole.attempt_of, duplicate.reservation.response_id, whole.attempts[0].attempt) == ("", "r", 2)
    assert (beside.reservation.response_id, beside.attempt_of, beside.attempts[0].attempt) == ("r.1", "r", 1)
    assert (beside.attempts[0].device_us, beside.created, beside.num_output_tokens) == (10, False, 0)
    assert [done[:2] for done in link.acknowledged] == [("r", 2), ("r", 1)]


async def test_while_policy_is_away_both_are_kept_for_it() -> None:
    adopter, settler, link = make()
    settler.is_away = True
    adopter.take(link, [orphan(0, n=1)])
    for _ in range(4):
        await asyncio.sleep(0)
    assert [one.reservation.response_id for one in settler.requests] == ["r", "r.1"]


async def test_one_that_cannot_be_settled_is_told_at_once_and_stays_with_its_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    adopter, _, link = make()
    crashed = Moved("task_crashes_total", task="orphan")
    broken = orphan(0, n=1)
    broken.reservation = b"\xff"
    adopter.take(link, [broken])
    for _ in range(3):
        await asyncio.sleep(0)
    assert crashed() == 1 and not link.acknowledged
    assert [record.exc_info is not None for record in caplog.records if record.message == "task_crashed"] == [True]
