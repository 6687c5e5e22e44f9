"""A store that is slow is not one that is away: what counts is silence towards everybody, once per silence."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace_policy.redis_link import RedisLink, StoreAwayError


class Slow:
    """Answers one call after the other, as Redis does; ``stalled`` answers nobody."""

    def __init__(self, service_s: float) -> None:
        self._service_s, self._turn = service_s, asyncio.Lock()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def ping(self) -> str:
        async with self._turn:
            await self.goes_on.wait()
            await asyncio.sleep(self._service_s)
        return "PONG"

    async def eval(self, *_: Any) -> list[Any]:
        return [b"ours"]


def link_to(store: Any, patient_s: float = 1.0) -> RedisLink:
    link = RedisLink(store, patient_s=patient_s)
    link._verified = True  # the number of its data is another test's
    return link


async def outcome(link: RedisLink, work: Callable[[], Any]) -> str:
    try:
        return str(await link.call(work, link.decide_s))
    except StoreAwayError as error:
        return str(error)


async def test_a_burst_that_a_slow_store_works_through_is_answered_whole() -> None:
    """Eight at once of 40 ms each: the last waits 320 ms, and the store was never silent for 80."""
    store = Slow(0.04)
    link = link_to(store)
    answers = await asyncio.gather(*(outcome(link, store.ping) for _ in range(24)))
    assert answers == ["PONG"] * 24 and link.away == ""


async def test_a_store_that_answers_others_for_ever_keeps_nobody_for_ever() -> None:
    store = Slow(0.0)
    link = link_to(store, patient_s=0.3)

    async def ask_on() -> None:
        while True:
            await link.call(store.ping, link.decide_s)
            await asyncio.sleep(0.001)

    others = asyncio.create_task(ask_on())
    async with asyncio.timeout(20):
        assert await outcome(link, asyncio.Event().wait) == "no answer within 80 ms"
    others.cancel()
    await asyncio.gather(others, return_exceptions=True)


async def test_calls_that_wait_through_one_hiccup_open_no_breaker() -> None:
    store = Slow(0.0)
    link = link_to(store)
    store.goes_on.clear()
    refused = await asyncio.gather(*(outcome(link, store.ping) for _ in range(8)))
    store.goes_on.set()
    assert refused == ["no answer within 80 ms"] * 8 and link.away == ""
    assert await outcome(link, store.ping) == "PONG"


async def test_three_silences_in_a_row_do() -> None:
    store = Slow(0.0)
    link = link_to(store)
    store.goes_on.clear()
    for number in range(3):
        assert link.away == "", number
        await asyncio.gather(*(outcome(link, store.ping) for _ in range(8)))
    assert link.away == "no answer within 80 ms"
    with pytest.raises(StoreAwayError) as blocked:
        await link.call(store.ping, link.decide_s)
    assert not blocked.value.sent
