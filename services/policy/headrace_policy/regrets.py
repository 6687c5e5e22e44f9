"""Admissions that were answered with 503 and may have taken effect all the same: released when Redis answers again."""

import asyncio
import logging
from collections import OrderedDict

from headrace.v1 import policy_pb2 as pb
from headrace_policy import messages
from headrace_policy.book import Shelf
from headrace_policy.bookkeeper import Bookkeeper
from headrace_policy.redis_link import StoreAwayError

log = logging.getLogger(__name__)
MOST = 10_000
"""What is beyond is left to the end of its lease."""
RETRY_S = 0.5


class Regrets:
    """``run`` for ``host.tasks.start``."""

    def __init__(self, shelf: Shelf, bookkeeper: Bookkeeper) -> None:
        self._shelf, self._bookkeeper = shelf, bookkeeper
        self._waiting: OrderedDict[str, pb.SettleRequest] = OrderedDict()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, reservation: pb.Reservation) -> None:
        release = pb.SettleRequest(reservation=reservation, source=pb.SETTLEMENT_SOURCE_OWNER)
        self._waiting[reservation.response_id] = release
        while len(self._waiting) > MOST:
            self._waiting.popitem(last=False)
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                try:
                    await self.release_one()
                except StoreAwayError:
                    await asyncio.sleep(RETRY_S)

    async def release_one(self) -> None:
        """The oldest; raises StoreAwayError and keeps it."""
        response_id, release = next(iter(self._waiting.items()))
        await self._bookkeeper.settle(release.reservation.identity.tenant, messages.closing(release, self._shelf.book))
        self._waiting.pop(response_id, None)
