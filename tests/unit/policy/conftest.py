"""One redis-server a test file, emptied before every test, and policy services on it."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from headrace.v1 import snapshot_pb2
from headrace_policy import redis_link
from headrace_policy.journal import Journal
from headrace_policy.redis_ledger import RedisLedger
from headrace_policy.redis_link import RedisLink
from headrace_policy.sqlite_journal import SqliteJournal
from tests.unit.policy.office import Office
from tests.unit.policy.redis_process import RedisProcess


@pytest.fixture(scope="module")
def redis_process() -> Iterator[RedisProcess]:
    process = RedisProcess().start()
    yield process
    process.close()


@pytest.fixture
async def link(redis_process: RedisProcess) -> AsyncIterator[RedisLink]:
    with redis_process.client() as client:
        client.flushall()
    connected = redis_link.connect(redis_process.url)
    yield RedisLink(connected, decide_s=30.0, patient_s=30.0)  # what is tested here is not how long a busy host takes
    await connected.aclose()


@pytest.fixture
def ledger(link: RedisLink) -> RedisLedger:
    return RedisLedger(link, lease_ms=30_000)


@pytest.fixture
async def office(link: RedisLink, tmp_path: Path) -> AsyncIterator[Callable[..., Office]]:
    """Opens policy services that share the one Redis; ``office(*limits)`` has the tenant acme with these limits."""
    opened: list[Office] = []
    numbers = itertools.count()

    def make(
        *limits: snapshot_pb2.Limit, lease_ms: int = 30_000, journal: Journal | None = None, **fields: object
    ) -> Office:
        journal = journal or SqliteJournal(tmp_path / f"{next(numbers)}.sqlite")
        opened.append(Office(link, lease_ms, journal, limits, fields))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
