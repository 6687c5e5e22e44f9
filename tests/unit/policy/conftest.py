"""One redis-server a test file, emptied before every test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from headrace_policy import redis_link
from headrace_policy.redis_ledger import RedisLedger
from headrace_policy.redis_link import RedisLink
from tests.unit.policy.redis_process import RedisProcess


@pytest.fixture(scope="module")
def redis_process() -> Iterator[RedisProcess]:
    process = RedisProcess("--appendonly", "no").start()
    yield process
    process.close()


@pytest.fixture
async def link(redis_process: RedisProcess) -> AsyncIterator[RedisLink]:
    with redis_process.client() as client:
        client.flushall()
    connected = redis_link.connect(redis_process.url)
    yield RedisLink(connected)
    await connected.aclose()


@pytest.fixture
def ledger(link: RedisLink) -> RedisLedger:
    return RedisLedger(link, lease_ms=30_000)
