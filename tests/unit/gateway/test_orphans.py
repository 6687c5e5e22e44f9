"""The books of a lost gateway's responses: settled once all choices are in, acknowledged only then."""

import asyncio
from typing import Any

from headrace.v1 import policy_pb2, response_pb2, routing_pb2
from headrace.v1 import worker_pb2 as pb
from headrace_gateway.orphans import OrphanSettler
from tests.meters import Moved

RAN_ON = response_pb2.ReplicaRef(id="w", epoch="e")


class FakeSettler:
    def __init__(self) -> None:
        self.requests: list[policy_pb2.SettleRequest] = []

    async def settle(self, request: policy_pb2.SettleRequest) -> None:
        self.requests.append(request)


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


def orphan(choice: int, gateway_id: str = "lost", n: int = 2) -> pb.Orphan:
    held = policy_pb2.Reservation(response_id="r", gateway_id=gateway_id)
    final = pb.Final(
        response_id="r",
        attempt=1,
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


async def test_the_router_hears_that_it_is_over_and_whose_fault_it_is_not() -> None:
    router = FakeRouter()
    adopter, _, link = make(router)
    adopter.take(link, [orphan(0), orphan(1)])
    for _ in range(3):
        await asyncio.sleep(0)
    (told,) = router.outcomes
    assert (told.decision_id, told.outcome, told.reason) == ("d", "failed", "gateway_lost")
    assert told.num_generated_tokens == 10
