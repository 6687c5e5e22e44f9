"""A real Redis that stops, comes back and is emptied while responses run: nothing is lost, nothing charged twice.

Gateways here do what ours do: they renew what runs, and settle from an outbox until it is taken.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.v1 import policy_pb2 as pb
from headrace.v1 import snapshot_pb2
from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from headrace_policy import redis_link
from headrace_policy.redis_link import RedisLink
from headrace_policy.sqlite_journal import SqliteJournal
from tests.unit.policy.fakes import limit
from tests.unit.policy.office import Office
from tests.unit.policy.redis_process import RedisProcess

LIMITS = (limit("tokens_per_day", 10**7), limit("concurrency", 10_000))
ALLOWANCE = snapshot_pb2.LocalAllowance(rpm=60_000, tpm=10**8)
NUM_CLIENTS = 12


class Load:
    """Clients of one policy; ``used`` is what each response really used, as its gateway knows it."""

    def __init__(self, office: Office) -> None:
        self._office, self._stopped = office, asyncio.Event()
        self.used: dict[str, int] = {}
        self.refusals: Counter[str] = Counter()
        self._numbers = iter(range(10**9))
        self._clients = [asyncio.create_task(self._client(random.Random(i))) for i in range(NUM_CLIENTS)]
        self._responses: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        self._stopped.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*self._clients)
            await asyncio.gather(*self._responses)

    async def until(self, num_more: int) -> None:
        """So many more responses were settled."""
        goal, deadline = len(self.used) + num_more, time.monotonic() + 20
        while len(self.used) < goal:
            assert time.monotonic() < deadline, "the load stands still"
            await asyncio.sleep(0.01)

    async def _client(self, chance: random.Random) -> None:
        while not self._stopped.is_set():
            name = f"r{next(self._numbers)}"
            try:
                answer = await self._office.admit(name)
            except HeadraceError as error:
                self.refusals[error.reason] += 1
                await asyncio.sleep(0.02)
                continue
            assert answer.admitted, answer.reason
            self._responses.add(asyncio.create_task(self._run(answer.reservation, chance)))
            await asyncio.sleep(chance.random() * 0.05)

    async def _run(self, held: pb.Reservation, chance: random.Random) -> None:
        await asyncio.sleep(chance.random() * 0.05)
        if chance.random() < 0.5:
            await self._until_taken(lambda: self._office.renew(held))
        num_output = chance.randrange(50)
        await self._until_taken(lambda: self._office.settle(held, "completed", num_output))
        self.used[held.response_id] = num_output

    async def _until_taken(self, call: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await call()
                return
            except HeadraceError as error:
                assert error.reason == "quota_unavailable"
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("allowance", [None, ALLOWANCE], ids=["closed", "allowance"])
async def test_redis_stops_returns_and_is_emptied_under_load(
    tmp_path: Path, allowance: snapshot_pb2.LocalAllowance | None
) -> None:
    server = RedisProcess().start()
    client = redis_link.connect(server.url)
    tenant = snapshot_pb2.Tenant(id="acme", limits=LIMITS, local_allowance=allowance)
    link = RedisLink(client, decide_s=0.5)
    office = Office(link, 30_000, SqliteJournal(tmp_path / "j.sqlite"), (), {"tenants": [tenant]})
    releasing, before = asyncio.create_task(office.regrets.run()), granted_locally()
    try:
        load = Load(office)
        await load.until(50)
        server.stop()
        await asyncio.sleep(0.3)
        server.start()
        await load.until(50)
        with server.client() as store:
            store.flushall()
            store.script_flush()
        await load.until(50)
        await load.stop()
        await asyncio.wait_for(until(lambda: len(office.regrets) == 0), 10)
        assert (granted_locally() > before) is (allowance is not None)
        assert (load.refusals["quota_unavailable"] > 0) is (allowance is None)
        assert set(load.refusals) <= {"quota_unavailable"}, "never 429, never unlimited"
        rows = [row for row in await office.usage() if row.settlement.created]
        assert {row.settlement.reservation.response_id: row.settlement.num_output_tokens for row in rows} == load.used
        assert len(rows) == len(load.used), "one row each"
        assert await office.level("concurrency") == 0
    finally:
        releasing.cancel()
        await asyncio.gather(releasing, return_exceptions=True)
        office.close()
        await client.aclose()
        server.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.02)


def granted_locally() -> float:
    return telemetry.REGISTRY.get_sample_value("admits_total", {"verdict": "local"}) or 0.0
