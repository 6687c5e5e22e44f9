"""One keeper of a replica's pages: a gap in what it hears asks for the list; a store that lost them is told again."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from headrace.v1 import worker_pb2
from headrace_router.index_keeper import IndexKeeper
from headrace_router.prefix_index import Change
from headrace_router.watcher import Credentials
from tests.meters import Moved
from tests.unit.router.fakes import Fleet, until
from tests.unit.router.test_prefix_index import changes, listing, stored


class Pages:
    """A store of pages that forgets when told to."""

    expiry_s = 60.0

    def __init__(self) -> None:
        self.known = True
        self.writes: list[tuple[Change, bool]] = []

    async def write(
        self, kv_context: bytes, replica_id: str, record: bytes, change: Change, whole: bool = False
    ) -> bool:
        self.writes.append((change, whole))
        return self.known


class Stub:
    """A replica that says these things, and then nothing."""

    def __init__(self, *said: worker_pb2.BlockEvents) -> None:
        self.said = said

    async def Watch(self, request: Any) -> AsyncIterator[worker_pb2.WatchEvent]:
        for blocks in self.said:
            yield worker_pb2.WatchEvent(epoch="e1", blocks=blocks)
        await asyncio.Event().wait()


def keeper(pages: Any) -> IndexKeeper:
    fleet = Fleet(time.monotonic)
    [replica] = fleet.ready("w-1")
    made = IndexKeeper(fleet.table, replica, pages, Credentials("r-1", "t", None))
    made._kv_context = b"ctx"
    return made


async def test_a_gap_ends_what_was_followed_and_asks_for_the_list() -> None:
    gaps, one = Moved("prefix_gaps_total"), keeper(Pages())
    await one._follow(Stub(listing(0, 1, 2), changes(5, stored(9))))
    assert gaps() == 1 and one._mirror.last_seen == ("", 0)


async def test_what_the_store_lost_is_written_again_whole() -> None:
    pages = Pages()
    lost, one = Moved("prefix_rewrites_total", because="lost"), keeper(pages)
    await one._take(worker_pb2.WatchEvent(epoch="e1", blocks=listing(0, 1, 2)))
    pages.known = False
    await one._take(worker_pb2.WatchEvent(epoch="e1", blocks=changes(0, stored(3))))
    assert lost() == 0
    pages.known = True
    await one._take(None)
    assert lost() == 1
    change, whole = pages.writes[-1]
    assert whole and len(change.added) == 3
    await until(lambda: not one._stale)
