"""The number of the data in Redis: an older or newer policy touches nothing there and says what to do."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis

from headrace_kit.errors import HeadraceError
from headrace_kit.health import Health
from headrace_policy import redis_link, redis_schema
from headrace_policy.readiness import RedisHealth
from headrace_policy.redis_link import RedisLink
from headrace_policy.redis_schema import KEY, SCHEMA, complaint
from tests.unit.policy.fakes import limit
from tests.unit.policy.office import Office
from tests.unit.policy.redis_process import RedisProcess

Open = Callable[..., Office]


@pytest.fixture
def store(redis_process: RedisProcess, link: RedisLink) -> Iterator["redis.Redis"]:
    with redis_process.client() as client:
        yield client


async def test_an_empty_server_gets_our_number_and_keeps_it_beyond_all_data(office: Open, store: "redis.Redis") -> None:
    assert (await office(limit("rpm", 10)).admit("r")).admitted
    assert store.get(KEY) == str(SCHEMA).encode()
    assert all(0 < store.pttl(key) <= store.pttl(KEY) for key in store.scan_iter())


@pytest.mark.parametrize(
    ("number", "advice"), [(b"2", "start that version"), (b"0", "stop every older policy"), (b"x", "stop every older")]
)
async def test_data_of_another_number_is_not_touched(
    office: Open, store: "redis.Redis", caplog: pytest.LogCaptureFixture, number: bytes, advice: str
) -> None:
    store.set(KEY, number)
    with pytest.raises(HeadraceError) as refused:
        await office(limit("rpm", 10)).admit("r")
    assert (refused.value.reason, refused.value.row.http) == ("quota_unavailable", 503)
    told = [getattr(record, "detail", "") for record in caplog.records if record.message == "redis_away"]
    assert len(told) == 1 and advice in told[0] and number.decode() in told[0] and KEY in complaint(b"0")
    assert (store.get(KEY), store.dbsize()) == (number, 1)


async def test_a_policy_is_not_ready_on_data_of_another_number(link: RedisLink, store: "redis.Redis") -> None:
    health = Health()
    readiness = RedisHealth(health, link)
    await readiness.probe()
    assert health.ready
    store.set(KEY, b"2")  # a newer policy was let in after an operator had emptied the server
    await readiness.probe()
    assert not health.ready and "schema 2" in str(health.report())


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    process = RedisProcess().start()
    yield process
    process.close()


async def test_a_server_that_was_away_is_looked_at_again(own: RedisProcess) -> None:
    clock = [0.0]
    client = redis_link.connect(own.url)
    link = RedisLink(client, decide_s=30.0, patient_s=30.0, clock=lambda: clock[0])
    assert await link.call(client.ping)
    own.stop()
    with pytest.raises(redis_link.StoreAwayError):
        await link.call(client.ping)
    own.start()
    with own.client() as store:
        store.set(KEY, b"2")
        clock[0] = 10.0
        with pytest.raises(redis_link.StoreAwayError, match="schema 2"):
            await link.call(client.ping)
        store.flushall()
        clock[0] = 20.0
        assert await link.call(client.ping)
        assert store.get(KEY) == str(redis_schema.SCHEMA).encode()
    await client.aclose()
