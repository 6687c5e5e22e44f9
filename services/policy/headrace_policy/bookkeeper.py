"""Keeps the ledger in order behind the calls: settles what gateways lost, moves journal rows from Redis to disk.

Rows of this process's own settlements go to disk from memory, so that a Redis that is emptied takes none of them along;
rows that a tour finds in Redis were left by a policy process that ended.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable

from google.protobuf.message import DecodeError

from headrace.v1 import policy_pb2 as pb
from headrace_kit import telemetry
from headrace_policy import messages
from headrace_policy.book import Shelf
from headrace_policy.journal import Journal, JournalError, Row
from headrace_policy.ledger import Closed, Closing
from headrace_policy.redis_ledger import RedisLedger
from headrace_policy.redis_link import RedisLink, StoreAwayError

log = logging.getLogger(__name__)
TICK_S = 1.0
ROUND_S = 60.0
"""How long it takes to visit every tenant; those with recent calls here are visited at every tick."""
_FLUSH_S = 0.05
_BATCH = 100
_swept = telemetry.counter("reservations_swept_total", "Reservations settled because no gateway renewed them")
_waiting = telemetry.gauge("journal_rows_waiting", "Settlements that are not on disk yet")
_lost_rows = telemetry.counter("journal_failures_total", "Writes of the journal that failed and are tried again")


class Bookkeeper:
    """``settle`` for the servicer; ``flush_for_ever`` and ``tour_for_ever`` for ``host.tasks.start``."""

    def __init__(
        self,
        shelf: Shelf,
        ledger: RedisLedger,
        link: RedisLink,
        journal: Journal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shelf, self._ledger, self._link, self._journal, self._clock = shelf, ledger, link, journal, clock
        self._fresh: list[Row] = []
        self._wake, self._flushing = asyncio.Event(), asyncio.Lock()
        self._touched: dict[str, float] = {}
        self._round: list[str] = []

    def touch(self, tenant: str) -> None:
        """This tenant has leases that may run out."""
        self._touched[tenant] = self._clock()

    async def settle(self, tenant: str, closing: Closing) -> Closed:
        """Raises StoreAwayError."""
        self.touch(tenant)
        closed = await self._ledger.settle(tenant, closing)
        if closed.row_id:
            correction = closed.state == "corrected"
            self._fresh.append(
                Row(tenant, closed.row_id, closing.response_id, closed.cost, correction, closing.message)
            )
            _waiting.set(len(self._fresh))
            self._wake.set()
        return closed

    async def flush(self) -> None:
        """Writes what this process settled; raises JournalError, and keeps the rows."""
        async with self._flushing:
            while rows := self._fresh[:_BATCH]:
                await asyncio.to_thread(self._journal.add, rows)
                del self._fresh[: len(rows)]
                _waiting.set(len(self._fresh))
                await self._drop(rows)

    async def flush_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(_FLUSH_S)
            try:
                await self.flush()
            except JournalError as error:
                _lost_rows.inc()
                log.error("journal_not_written", extra={"num_rows": len(self._fresh), "detail": str(error)})
                await asyncio.sleep(TICK_S)
                self._wake.set()

    async def tour_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                for tenant in self._itinerary():
                    await self.visit(tenant)
            except (StoreAwayError, JournalError) as error:
                log.warning("tour_interrupted", extra={"detail": str(error)})

    async def visit(self, tenant: str) -> None:
        """Settles this tenant's lost reservations and drains its stream; raises StoreAwayError or JournalError."""
        found = await self._ledger.tour(tenant, _BATCH)
        if found.expired and self._may_sweep():
            for message in found.expired:
                await self._sweep(tenant, message)
        if found.num_rows:
            await self.flush()
            await self._drain(tenant)

    async def _sweep(self, tenant: str, message: bytes) -> None:
        try:
            closing = messages.closing(messages.lost(message), self._shelf.book, only_expired=True)
        except DecodeError:
            log.error("reservation_unreadable", extra={"tenant": tenant})
            return
        closed = await self.settle(tenant, closing)
        if closed.state == "applied":
            _swept.inc()
            log.warning("reservation_swept", extra={"tenant": tenant, "response_id": closing.response_id})

    async def _drain(self, tenant: str) -> None:
        while found := await self._ledger.rows(tenant, _BATCH):
            rows = [_row(tenant, row_id, fields) for row_id, fields in found]
            await asyncio.to_thread(self._journal.add, rows)
            await self._ledger.drop_rows(tenant, [row.row_id for row in rows])

    async def _drop(self, rows: list[Row]) -> None:
        """What cannot be dropped now is found by a tour, and is on disk already."""
        by_tenant: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            by_tenant[row.tenant].append(row.row_id)
        try:
            for tenant, row_ids in by_tenant.items():
                await self._ledger.drop_rows(tenant, row_ids)
        except StoreAwayError as error:
            log.warning("rows_not_dropped", extra={"detail": str(error)})

    def _may_sweep(self) -> bool:
        """After Redis or this process returns, gateways get one lease to renew what they could not."""
        return self._clock() - self._link.back_since >= self._ledger.lease_ms / 1000

    def _itinerary(self) -> list[str]:
        recent = self._clock() - 2 * self._ledger.lease_ms / 1000
        self._touched = {tenant: at for tenant, at in self._touched.items() if at > recent}
        if not self._round:
            self._round = list(self._shelf.book.tenants)
        share = max(1, round(len(self._shelf.book.tenants) * TICK_S / ROUND_S))
        ahead, self._round = self._round[:share], self._round[share:]
        return list(dict.fromkeys([*self._touched, *ahead]))


def _row(tenant: str, row_id: str, fields: dict[bytes, bytes]) -> Row:
    settlement = pb.SettleRequest.FromString(fields[b"s"])
    response_id = settlement.reservation.response_id
    return Row(tenant, row_id, response_id, float(fields[b"c"]), fields[b"k"] == b"1", fields[b"s"])
