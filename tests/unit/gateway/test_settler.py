"""Every settlement reaches policy once it answers, and no terminal waits longer than a moment for it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.v1 import policy_pb2 as pb
from headrace_gateway.outbox import Outbox
from headrace_gateway.settler import SETTLE_WAIT_S, Settler
from headrace_kit.errors import HeadraceError
from tests.meters import Moved, reading


class FakePolicy:
    """Settles at once, never, or with an error; remembers what it settled."""

    def __init__(self) -> None:
        self.settled: list[str] = []
        self.error: HeadraceError | None = None
        self.answering = asyncio.Event()
        self.answering.set()

    async def settle(self, request: pb.SettleRequest) -> pb.SettleResponse:
        await self.answering.wait()
        if self.error is not None:
            raise self.error
        self.settled.append(request.reservation.response_id)
        return pb.SettleResponse(state=pb.SettleResponse.STATE_APPLIED)


@pytest.fixture
def policy() -> FakePolicy:
    return FakePolicy()


def settlement(response_id: str) -> pb.SettleRequest:
    return pb.SettleRequest(reservation=pb.Reservation(response_id=response_id), num_output_tokens=3)


def settler_over(policy: Any, path: Path) -> tuple[Settler, Outbox]:
    outbox = Outbox(path)
    return Settler(policy, outbox), outbox


async def until(condition: Any) -> None:
    async with asyncio.timeout(5.0):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0)


async def test_a_quick_answer_touches_no_disk(policy: FakePolicy, tmp_path: Path) -> None:
    settler, outbox = settler_over(policy, tmp_path / "o")
    await settler.settle(settlement("r1"))
    assert policy.settled == ["r1"] and len(outbox) == 0


async def test_a_slow_answer_is_not_waited_for(policy: FakePolicy, tmp_path: Path) -> None:
    settler, outbox = settler_over(policy, tmp_path / "o")
    policy.answering.clear()
    late = Moved("settlements_late_total")
    loop = asyncio.get_running_loop()
    started = loop.time()
    await settler.settle(settlement("r1"))
    assert loop.time() - started < 20 * SETTLE_WAIT_S
    assert len(outbox) == 1
    assert (late(), reading("settlements_waiting")) == (1, 1)
    policy.answering.set()
    await until(lambda: len(outbox) == 0)
    await until(lambda: reading("settlements_waiting") == 0)
    assert "r1" in policy.settled


async def test_an_outage_is_bridged_from_disk_also_by_the_next_process(policy: FakePolicy, tmp_path: Path) -> None:
    settler, outbox = settler_over(policy, tmp_path / "o")
    policy.error = HeadraceError("policy_unavailable", "away")
    for name in ("r1", "r2"):
        await settler.settle(settlement(name))
    assert [name for name, _ in outbox.oldest(10)] == ["r1", "r2"]
    outbox.close()
    policy.error = None
    successor, outbox = settler_over(policy, tmp_path / "o")
    task = asyncio.create_task(successor.run())
    await until(lambda: len(outbox) == 0)
    task.cancel()
    assert policy.settled == ["r1", "r2"]


async def test_a_settlement_that_is_refused_holds_up_no_other(policy: FakePolicy, tmp_path: Path) -> None:
    settler, outbox = settler_over(policy, tmp_path / "o")
    policy.error = HeadraceError("invalid_argument", "never")
    refused = Moved("settlements_refused_total")
    await settler.settle(settlement("r1"))
    task = asyncio.create_task(settler.run())
    await until(lambda: outbox.refused() == ["r1"])
    policy.error = None
    await settler.settle(settlement("r2"))
    await until(lambda: len(outbox) == 0)
    task.cancel()
    assert policy.settled == ["r2"] and outbox.refused() == ["r1"] and refused() == 1


async def test_a_full_disk_costs_no_response_its_ending(policy: FakePolicy, tmp_path: Path) -> None:
    settler, outbox = settler_over(policy, tmp_path / "o")
    outbox._database.execute("PRAGMA max_page_count = 1")  # as full as it is
    policy.error = HeadraceError("quota_unavailable", "the quota store does not answer")
    large = settlement("r1")
    large.reason = "x" * 100_000
    assert await settler.settle(large) is None
    assert (outbox.ids(), settler.num_in_hand, settler.num_waiting) == (["r1"], 1, 1)
    policy.error = None
    running = asyncio.create_task(settler.run())
    await until(lambda: policy.settled == ["r1"] and not len(outbox))
    running.cancel()
    assert (settler.num_waiting, outbox.oldest(9)) == (0, [])


def test_what_the_disk_does_not_let_go_is_not_sent_again(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "o")
    outbox.put("r1", b"1")
    outbox.put("r2", b"2")
    outbox._database.execute("PRAGMA query_only = 1")
    outbox.remove("r1")
    outbox.put("r3", b"3")
    assert outbox.oldest(9) == [("r2", b"2"), ("r3", b"3")] and len(outbox) == 2
    assert outbox.oldest(1) == [("r2", b"2")]
