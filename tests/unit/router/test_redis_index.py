"""The prefix index in a real Redis: what is written is found, by every router, and nothing outlives its use."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from headrace_router import redis_link, redis_pages
from headrace_router.prefix_index import Change, Group, record_of
from headrace_router.redis_index import RedisIndex
from headrace_router.redis_pages import IndexAwayError, LeaseLostError, RedisPages
from tests.meters import Moved
from tests.unit.policy.redis_process import RedisProcess

CTX = b"context-of-kv..."
ONE, TWO = record_of("w-1", "e1"), record_of("w-2", "e1")


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


CHAIN = b"".join(key(i) for i in range(300))


@pytest.fixture(scope="module")
def server() -> Iterator[RedisProcess]:
    process = RedisProcess().start()
    yield process
    process.close()


@pytest.fixture
async def client(server: RedisProcess) -> AsyncIterator[Any]:
    with server.client() as plain:
        plain.flushall()
    made = redis_link.connect(server.url)
    yield made
    await made.aclose()


def index(client: Any) -> RedisIndex:
    return RedisIndex(client, look_up_s=10)


async def keeper(client: Any, replica_id: str = "w-1", router_id: str = "r-1", **options: Any) -> RedisPages:
    pages = RedisPages(client, router_id, **options)
    assert await pages.acquire(CTX, replica_id)
    return pages


def pages_of(*numbers: int) -> tuple[bytes, ...]:
    return tuple(map(key, numbers))


async def put(pages: RedisPages, record: bytes, *numbers: int, gone: tuple[int, ...] = ()) -> bool:
    name = "w-1" if record[:4] == ONE[:4] else "w-2"
    return await pages.write(CTX, name, record, Change(pages_of(*numbers), pages_of(*gone)), whole=True)


async def hits(client: Any, page_tokens: int = 16, chain: bytes = CHAIN) -> dict[bytes, int]:
    return dict(await index(client).hits(chain, [Group(CTX, page_tokens)]))


async def test_leading_pages_are_found_and_those_behind_a_hole_are_not(client: Any) -> None:
    await put(await keeper(client), ONE, *range(290), 299)
    await put(await keeper(client, "w-2"), TWO, *range(3), *range(4, 300))
    answered = Moved("prefix_lookup_seconds_count")
    assert await hits(client) == {ONE: 290 * 16, TWO: 3 * 16}
    assert await hits(client, chain=key(999) + CHAIN) == {}
    assert answered() == 2


async def test_nobody_hits_across_contexts(client: Any) -> None:
    await put(await keeper(client), ONE, 0, 1)
    assert await index(client).hits(CHAIN, [Group(b"another", 16)]) == {}


async def test_groups_are_looked_up_in_one_pipeline(client: Any) -> None:
    """Pages of 16 and of 48 tokens, in two contexts; also by a server that does not know the script yet."""
    await put(await keeper(client), ONE, 0, 1)
    other = RedisPages(client, "r-1")
    await other.acquire(b"other", "w-2")
    await other.write(b"other", "w-2", TWO, Change(pages_of(2, 5)))
    await client.script_flush()
    groups = [Group(CTX, 16), Group(b"other", 48)]
    assert await index(client).hits(CHAIN, groups) == {ONE: 32, TWO: 96}


async def test_what_is_evicted_is_not_found_and_leaves_nothing_behind(client: Any) -> None:
    one, two = await keeper(client), await keeper(client, "w-2")
    await put(one, ONE, 0, 1)
    await put(two, TWO, 0)
    await put(one, ONE, gone=(0, 1))
    assert await hits(client) == {TWO: 16}
    await put(two, TWO, gone=(0,))
    assert all(b":m:" in name or b":l:" in name for name in await client.keys())


async def test_a_repeated_write_changes_nothing(client: Any) -> None:
    one = await keeper(client)
    await put(one, ONE, *range(5))
    names = sorted(await client.keys())
    before = [await client.get(name) for name in names]
    await put(one, ONE, *range(5))
    assert sorted(await client.keys()) == names
    assert [await client.get(name) for name in names] == before


async def test_a_new_epoch_replaces_the_old_one(client: Any) -> None:
    """B87: a restart in place with the same id."""
    one, again = await keeper(client), record_of("w-1", "e2")
    await put(one, ONE, 0, 1)
    await put(one, again, 0, gone=(1,))
    assert await hits(client) == {again: 16}


async def test_equal_holders_are_one_run_whatever_order_they_came_in(client: Any) -> None:
    one, two = await keeper(client), await keeper(client, "w-2")
    await put(one, ONE, 0, 2)
    await put(two, TWO, 0, 1, 2)
    await put(one, ONE, 1)
    values = {await client.get(name) for name in await client.keys() if name.endswith((key(0), key(1), key(2)))}
    assert values == {min(ONE, TWO) + max(ONE, TWO)}


async def test_only_the_holder_of_the_lease_writes(client: Any) -> None:
    first = await keeper(client)
    second = RedisPages(client, "r-2")
    assert not await second.acquire(CTX, "w-1")
    with pytest.raises(LeaseLostError):
        await put(second, ONE, 0)
    await first.release(CTX, "w-1")
    assert await second.acquire(CTX, "w-1")
    assert await put(second, ONE, 0)
    with pytest.raises(LeaseLostError):
        await put(first, ONE, 1)
    assert await hits(client) == {ONE: 16}


async def test_a_write_after_a_loss_says_so(client: Any) -> None:
    one = await keeper(client)
    assert await put(one, ONE, 0, 1)
    assert await one.write(CTX, "w-1", ONE, Change(pages_of(2)))
    await client.flushall()
    assert await one.acquire(CTX, "w-1")
    assert not await one.write(CTX, "w-1", ONE, Change())


async def test_every_key_expires(client: Any) -> None:
    one = await keeper(client, expiry_s=60)
    await put(one, ONE, *range(600))
    await put(one, ONE, gone=(3,))
    times = [await client.pttl(name) for name in await client.keys()]
    assert len(times) == 601
    assert all(0 < left <= 60_000 for left in times)


async def test_a_key_keeps_a_bounded_number_of_holders(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_pages, "MAX_HOLDERS", 4)
    for i in range(20):
        pages = await keeper(client, f"w-{i}")
        await pages.write(CTX, f"w-{i}", record_of(f"w-{i}", "e"), Change(pages_of(0)))
    found = await hits(client)
    assert len(found) == 4
    assert record_of("w-19", "e") in found


async def test_redis_away_costs_a_decision_little_and_then_nothing() -> None:
    gone = redis_link.connect("unix:///nowhere/redis.sock")
    away = RedisIndex(gone)
    started = time.monotonic()
    for _ in range(1000):
        assert await away.hits(CHAIN, [Group(CTX, 16)]) == {}
    assert time.monotonic() - started < 0.9, "a thousand decisions without the index"
    with pytest.raises(IndexAwayError):
        await RedisPages(gone, "r-1").write(CTX, "w-1", ONE, Change())
    assert not await RedisPages(gone, "r-1").acquire(CTX, "w-1")


async def test_a_silent_redis_costs_a_few_milliseconds_three_times(server: RedisProcess) -> None:
    """A server that takes the connection and says nothing; then it is left alone, and asked again after the pause."""
    num_asked = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_asked
        while await reader.read(65536):
            num_asked += 1
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    now = [0.0]
    mute = redis_link.connect(f"redis://127.0.0.1:{port}")
    away = RedisIndex(mute, clock=lambda: now[0])
    for _ in range(3):
        assert await away.hits(CHAIN, [Group(CTX, 16)]) == {}
    assert num_asked > 0
    asked = num_asked
    for _ in range(50):
        await away.hits(CHAIN, [Group(CTX, 16)])
    assert num_asked == asked
    now[0] = 2.0
    assert not away._running or await asyncio.wait(away._running)
    await away.hits(CHAIN, [Group(CTX, 16)])
    assert away._num_late == 1 or away._blocked_until > now[0]
    await mute.aclose()
    if away._running:
        await asyncio.wait(away._running)
    listener.close()
