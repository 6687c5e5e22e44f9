"""The calls of a gateway, against a real Redis: B50, B51, B62, idempotence, and answers of bad input."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.v1 import policy_pb2 as pb
from headrace_policy import identity
from headrace_policy.book import Shelf
from headrace_policy.redis_ledger import RedisLedger
from headrace_policy.servicer import PolicyServicer
from tests.unit.policy.fakes import KEY, limit, reservation, section, settlement

Make = Callable[..., "Calls"]


class Calls:
    """A gateway's view of one policy service."""

    def __init__(self, servicer: PolicyServicer, caller: pb.Identity) -> None:
        self.servicer, self.identity = servicer, caller

    async def admit(self, response_id: str, *bounds: int, **fields: Any) -> pb.AdmitResponse:
        held = reservation(response_id, self.identity, *bounds)
        return await self.servicer.Admit(pb.AdmitRequest(reservation=held, **fields), None)

    async def settle(self, held: pb.Reservation, *args: Any, **fields: Any) -> pb.SettleResponse:
        return await self.servicer.Settle(settlement(held, *args, **fields), None)


@pytest.fixture
def make(ledger: RedisLedger) -> Make:
    def made(*limits: Any, **fields: Any) -> Calls:
        shelf = Shelf()
        shelf.apply(section(*limits, **fields))
        servicer = PolicyServicer(shelf, ledger)
        return Calls(servicer, identity.authenticate(shelf.book, KEY, "", 0.0))

    return made


async def test_five_racing_requests_take_one_place(make: Make) -> None:
    calls = make(limit("tpm", 100))
    answers = await asyncio.gather(*(calls.admit(f"r{i}") for i in range(5)))
    assert [answer.reason for answer in answers if not answer.admitted] == ["tpm"] * 4
    first = next(answer for answer in answers if answer.admitted)
    assert (await calls.settle(first.reservation, "completed", 20)).state == pb.SettleResponse.STATE_APPLIED
    assert (await calls.admit("next")).admitted
    late = await calls.admit("late")
    assert (late.admitted, late.reason, late.limit) == (False, "tpm", "tpm/tenant")
