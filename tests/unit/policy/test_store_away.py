"""Redis away (decision 8): B59 and B60, both modes, and nothing lost or charged twice when it comes back."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from os import kill
from pathlib import Path
from typing import Any

import pytest

from headrace.v1 import snapshot_pb2
from headrace_kit.errors import HeadraceError
from headrace_policy import redis_link
from headrace_policy.redis_link import RedisLink
from headrace_policy.sqlite_journal import SqliteJournal
from tests.unit.policy.fakes import limit
from tests.unit.policy.office import Office
from tests.unit.policy.redis_process import RedisProcess

LIMITS = (limit("tokens_per_day", 100_000), limit("concurrency", 5))


@pytest.fixture
async def server() -> AsyncIterator[RedisProcess]:
    process = RedisProcess().start()
    yield process
    process.close()


@pytest.fixture
async def own(server: RedisProcess, tmp_path: Path) -> AsyncIterator[Callable[..., Office]]:
    """An office on its own server, whose breaker is never open for long."""
    client = redis_link.connect(server.url)
    opened: list[Office] = []

    def make(*limits: Any, decide_s: float = 0.08, **fields: Any) -> Office:
        journal = SqliteJournal(tmp_path / f"{len(opened)}.sqlite")
        opened.append(Office(RedisLink(client, decide_s=decide_s), 30_000, journal, limits, fields))
        return opened[-1]

    yield make
    await client.aclose()
    for one in opened:
        one.close()


async def until_back(calls: Office, response_id: str) -> Any:
    """The first answer that is not 503, within the time that the breaker needs."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return await calls.admit(response_id)
        except HeadraceError as error:
            assert error.reason == "quota_unavailable" and time.monotonic() < deadline
            await asyncio.sleep(0.02)


async def test_a_silent_redis_is_503_within_100_ms(own: Callable[..., Office], server: RedisProcess) -> None:
    calls = own(*LIMITS)
    assert (await calls.admit("before")).admitted
    kill(server.pid, signal.SIGSTOP)
    try:
        seconds = []
        for i in range(20):
            started = time.perf_counter()
            with pytest.raises(HeadraceError) as refused:
                await calls.admit(f"r{i}")
            seconds.append(time.perf_counter() - started)
            assert (refused.value.reason, refused.value.row.http) == ("quota_unavailable", 503)
    finally:
        kill(server.pid, signal.SIGCONT)
    # Three wait, and the breaker answers all others. What is above it of two of the three may be this host's.
    *at_once, best_of_three, _, _ = sorted(seconds)
    assert best_of_three < 0.1 and sorted(at_once)[len(at_once) // 2] < 0.02


async def test_what_a_silent_redis_took_after_all_is_released(own: Callable[..., Office], server: RedisProcess) -> None:
    calls = own(*LIMITS)
    await calls.admit("before")
    kill(server.pid, signal.SIGSTOP)
    with pytest.raises(HeadraceError):
        await calls.admit("ambiguous")
    assert len(calls.regrets) == 1
    kill(server.pid, signal.SIGCONT)
    assert (await until_back(calls, "after")).admitted
    await calls.regrets.release_one()
    assert await calls.level("concurrency") == 2, "before and after"
    assert len(calls.regrets) == 0


async def test_a_stopped_redis_keeps_its_levels_and_nothing_is_charged_twice(
    own: Callable[..., Office], server: RedisProcess
) -> None:
    calls = own(*LIMITS)
    first, second = await calls.admit("first", 100, 50), await calls.admit("second", 100, 50)
    await calls.settle(first.reservation, "completed", 10)
    server.stop()
    with pytest.raises(HeadraceError) as refused:
        await calls.settle(second.reservation, "completed", 20)
    assert refused.value.reason == "quota_unavailable"
    server.start()
    assert (await until_back(calls, "third")).admitted
    assert await calls.settle(second.reservation, "completed", 20) == "applied"
    assert await calls.settle(first.reservation, "completed", 10) == "duplicate"
    assert await calls.level("tokens_per_day") == pytest.approx(110 + 120 + 58, abs=5)
    assert sorted(row.settlement.num_output_tokens for row in await calls.usage()) == [10, 20]


async def test_an_emptied_redis_gets_everything_back_from_renewals_and_settlements(
    own: Callable[..., Office], server: RedisProcess
) -> None:
    calls = own(*LIMITS)
    held = [(await calls.admit(f"r{i}", 100, 50)).reservation for i in range(4)]
    with server.client() as client:
        client.flushall()
        client.script_flush()
    assert await calls.renew(*held[:3]) == ["restored"] * 3
    assert await calls.level("concurrency") == 3
    assert await calls.level("tokens_per_day") == pytest.approx(450, abs=1)
    assert [await calls.settle(one, "completed", 5) for one in held] == ["applied"] * 4
    assert await calls.level("tokens_per_day") == pytest.approx(420, abs=1)
    assert await calls.level("concurrency") == 0


async def test_a_local_allowance_is_bounded_and_charged_when_redis_is_back(
    own: Callable[..., Office], server: RedisProcess
) -> None:
    allowance = snapshot_pb2.LocalAllowance(rpm=3, tpm=10_000)
    tenant = snapshot_pb2.Tenant(id="acme", limits=LIMITS, local_allowance=allowance)
    calls = own(tenants=[tenant])
    server.stop()
    granted = [await calls.admit(f"r{i}") for i in range(3)]
    assert all(answer.admitted and not answer.reservation.charges for answer in granted)
    with pytest.raises(HeadraceError) as refused:
        await calls.admit("one too many")
    assert refused.value.reason == "quota_unavailable"
    server.start()
    assert (await until_back(calls, "after")).admitted
    assert await calls.renew(granted[0].reservation) == ["restored"]
    assert await calls.settle(granted[0].reservation, "completed", 2) == "applied"
    assert await calls.settle(granted[1].reservation, "completed", 4) == "applied"
    assert await calls.level("tokens_per_day") == pytest.approx(10 + 12 + 58, abs=1)
    assert await calls.level("concurrency") == 1


async def test_a_server_that_forbids_scripts_is_never_silently_replaced(
    own: Callable[..., Office], server: RedisProcess
) -> None:
    with server.client() as client:
        client.acl_setuser("default", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-evalsha", "-eval"])
    with pytest.raises(HeadraceError) as refused:
        await own(*LIMITS).admit("r")
    assert refused.value.reason == "quota_unavailable"


async def test_a_server_that_forbids_script_load_is_served_by_eval(
    own: Callable[..., Office], server: RedisProcess
) -> None:
    with server.client() as client:
        client.acl_setuser("default", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-script"])
    assert (await own(*LIMITS, decide_s=5.0).admit("r")).admitted


async def test_three_services_and_sixty_racing_requests_take_exactly_the_limit(own: Callable[..., Office]) -> None:
    offices = [own(limit("rpm", 10), limit("concurrency", 100), decide_s=5.0) for _ in range(3)]
    answers = await asyncio.gather(*(offices[i % 3].admit(f"r{i}") for i in range(60)))
    assert sum(answer.admitted for answer in answers) == 10
    assert {answer.reason for answer in answers if not answer.admitted} == {"rpm"}
    assert await offices[0].level("concurrency") == 10


async def test_a_call_that_is_cancelled_ends(server: RedisProcess) -> None:
    client = redis_link.connect(server.url)
    link = RedisLink(client, decide_s=30.0, patient_s=30.0)
    went_on = 0

    async def caller() -> None:
        nonlocal went_on
        while True:
            await link.call(client.ping)
            went_on += bool(asyncio.current_task().cancelling())  # type: ignore[union-attr]

    for turns in range(60):
        tasks = [asyncio.create_task(caller()) for _ in range(12)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        done, _ = await asyncio.wait(tasks, timeout=5)
        assert len(done) == 12 and all(task.cancelled() for task in done)
    assert went_on == 0
    await client.aclose()


async def test_a_process_that_was_busy_takes_the_answer_that_came_meanwhile(own: Callable[..., Office]) -> None:
    """The deadline is for a silent Redis: a burst, or a busy host, must not look like one."""
    office = own(*LIMITS)
    await office.admit("warm")
    asked = [asyncio.create_task(office.admit(f"busy-{number}")) for number in range(3)]
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251 - what is tested is a loop that does not get to run
    assert all(answer.admitted for answer in await asyncio.gather(*asked))


@pytest.mark.parametrize("skew_ms", [-3_600_000, -5_000, 5_000, 3_600_000])
@pytest.mark.parametrize("renews", [True, False])
async def test_a_clock_that_is_wrong_changes_no_charge(
    own: Callable[..., Office], server: RedisProcess, skew_ms: int, renews: bool
) -> None:
    """Times that count are those of Redis; what a reservation carries came from a host whose clock may be wrong."""
    calls = own(*LIMITS, decide_s=5.0)
    held = (await calls.admit("r", 100, 50)).reservation
    held.admitted_at_ms += skew_ms
    with server.client() as client:
        client.flushall()
    if renews:
        assert await calls.renew(held) == ["restored"]
        assert await calls.level("tokens_per_day") == pytest.approx(150, abs=1)
    assert await calls.settle(held, "completed", 5) == "applied"
    assert await calls.level("tokens_per_day") == pytest.approx(105, abs=1)
    assert await calls.level("concurrency") == 0
    (row,) = await calls.usage()
    assert abs(row.settled_at_ms - time.time() * 1000) < 60_000
