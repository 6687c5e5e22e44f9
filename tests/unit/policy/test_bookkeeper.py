"""Lost gateways and the journal: B52, corrections after a sweep, rows that outlive Redis and this process."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace_policy.journal import JournalError
from headrace_policy.redis_link import RedisLink
from tests.meters import Moved, reading
from tests.unit.policy.fakes import limit
from tests.unit.policy.office import Office
from tests.unit.policy.redis_process import RedisProcess

Open = Callable[..., Office]
SHORT_MS = 0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  a metric has no event
            await asyncio.sleep(0.01)


async def visit(calls: Office, link: RedisLink, *, after_pause: bool = True) -> None:
    link.back_since = float("-inf") if after_pause else float("inf")
    await calls.bookkeeper.visit("acme")


async def test_what_a_lost_gateway_held_is_free_after_its_lease(office: Open, link: RedisLink) -> None:
    calls = office(limit("concurrency", 10), limit("tokens_per_day", 1000), limit("rpm", 60_000), lease_ms=SHORT_MS)
    for i in range(10):
        assert (await calls.admit(f"r{i}")).admitted
    assert (await calls.admit("one more")).reason == "concurrency"
    swept = Moved("reservations_swept_total")
    await visit(calls, link)
    assert swept() == 10
    assert await calls.level("concurrency") == 0
    assert await calls.level("tokens_per_day") == pytest.approx(0, abs=0.1)
    assert (await calls.admit("one more")).admitted
    rows = [row.settlement for row in await calls.usage() if row.settlement.reservation.response_id != "one more"]
    assert [(row.reason, row.num_output_tokens) for row in rows] == [("gateway_lost", 0)] * 10


async def test_a_renewed_lease_is_not_swept(office: Open, link: RedisLink) -> None:
    calls = office()
    answer = await calls.admit("r")
    await visit(calls, link)
    assert await calls.renew(answer.reservation) == ["renewed"]
    assert await calls.usage() == []


async def test_a_true_settlement_after_the_sweep_is_one_correcting_row(office: Open, link: RedisLink) -> None:
    calls = office(limit("tokens_per_day", 1000), lease_ms=SHORT_MS)
    answer = await calls.admit("r")
    await visit(calls, link)
    assert await calls.renew(answer.reservation) == ["settled"]
    assert await calls.settle(answer.reservation, "completed", 20) == "corrected"
    assert await calls.level("tokens_per_day") == pytest.approx(28, abs=0.1)
    assert [(row.settlement.reason, row.correction) for row in await calls.usage()] == [
        ("gateway_lost", False),
        ("", True),
    ]


async def test_nothing_is_swept_while_gateways_could_not_renew(office: Open, link: RedisLink) -> None:
    calls = office(lease_ms=SHORT_MS)
    answer = await calls.admit("r")
    await visit(calls, link, after_pause=False)
    assert await calls.settle(answer.reservation, "completed", 1) == "applied"


async def test_rows_of_an_ended_process_are_found_by_the_next(office: Open) -> None:
    ended = office()
    await ended.settle((await ended.admit("r")).reservation, "completed", 3)
    successor = office()
    assert [row.settlement.num_output_tokens for row in await successor.usage()] == [3]


async def test_rows_leave_redis_when_they_are_on_disk(office: Open, redis_process: RedisProcess) -> None:
    calls = office()
    await calls.settle((await calls.admit("r")).reservation, "completed", 3)
    with redis_process.client() as client:
        assert client.xlen("headrace:{acme}:journal") == 1
        await calls.bookkeeper.flush()
        assert client.xlen("headrace:{acme}:journal") == 0
    assert len(await calls.usage()) == 1


async def test_an_emptied_redis_takes_no_row_along(office: Open, redis_process: RedisProcess) -> None:
    calls = office()
    await calls.settle((await calls.admit("r")).reservation, "completed", 3)
    with redis_process.client() as client:
        client.flushall()
    assert len(await calls.usage()) == 1


async def test_a_journal_that_cannot_be_written_is_counted_and_tried_again(office: Open) -> None:
    calls = office()
    answer = await calls.admit("r")
    failed, real = Moved("journal_failures_total"), calls.journal.add
    given = asyncio.Event()

    def broken(rows: Any) -> None:
        given.set()
        raise JournalError("the disk is full")

    calls.journal.add = broken  # type: ignore[method-assign]
    await calls.settle(answer.reservation, "completed", 2)
    task = asyncio.create_task(calls.bookkeeper.flush_for_ever())
    async with asyncio.timeout(5):
        await given.wait()
    await until(lambda: failed() == 1)
    assert reading("journal_rows_waiting") == 1
    calls.journal.add = real  # type: ignore[method-assign]
    await until(lambda: reading("journal_rows_waiting") == 0)
    task.cancel()
    assert len(await calls.usage()) == 1
