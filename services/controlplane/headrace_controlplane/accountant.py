"""Answers what device time went into: lifetimes from here, settlements from policy's journal. Splits nothing itself."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable

from headrace.v1 import fleet_pb2 as pb
from headrace.v1 import policy_pb2
from headrace_controlplane import cost
from headrace_controlplane.full_disk import told_when_full
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.lifetimes import Lifetimes
from headrace_controlplane.questions import Questions
from headrace_controlplane.roster import Roster
from headrace_controlplane.settled_work import works
from headrace_kit.errors import HeadraceError

log = logging.getLogger(__name__)
_OBSERVE_EVERY_S = 1.0


class Accountant:
    """``keep`` is for ``host.tasks.start``; ``wall`` is Unix time in seconds."""

    def __init__(
        self,
        lifetimes: Lifetimes,
        ledger: Ledger,
        roster: Roster,
        questions: Questions,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._lifetimes, self._ledger, self._roster, self._questions = lifetimes, ledger, roster, questions
        self._wall = wall

    async def keep(self) -> None:
        """For ever: writes down who lives. What cannot be written now is written with the next look."""
        while True:
            await asyncio.sleep(_OBSERVE_EVERY_S)
            try:
                self.observe()
            except sqlite3.Error as error:
                log.error("lifetimes_not_written", extra={"detail": str(error)})

    def observe(self) -> None:
        current = self._ledger.current
        pools = current.fleet.pools if current else {}
        self._lifetimes.observe(self._roster.registry.records(), pools, self._now_ms())

    async def report(self, request: pb.CostRequest) -> pb.CostReport:
        """Raises HeadraceError."""
        to_ms = request.to_ms or self._now_ms()
        if request.from_ms > to_ms:
            raise HeadraceError("invalid_argument", f"expected at most to_ms ({to_ms})", field="from_ms")
        with told_when_full():
            self.observe()
        query = policy_pb2.UsageQuery(from_ms=request.from_ms, to_ms=to_ms)
        rows = [row async for row in self._questions.usage(query)]
        segments = self._lifetimes.between(request.from_ms, to_ms)
        lines = cost.account(segments, works(rows))
        total = cost.bill(segments)
        return pb.CostReport(
            rows=[_row(line, amount) for line, amount in sorted(lines.items()) if _is_wanted(line, request.tenant)],
            bill_device_us=total.device_us,
            bill_cost=total.cost,
            from_ms=min((one.from_ms for one in segments), default=request.from_ms),
            to_ms=to_ms,
        )

    def _now_ms(self) -> int:
        return int(self._wall() * 1000)


def _is_wanted(line: cost.Account, tenant: str) -> bool:
    return not tenant or line.tenant == tenant


def _row(line: cost.Account, amount: cost.Amount) -> pb.CostRow:
    return pb.CostRow(
        pool=line.pool,
        model=line.model,
        tenant=line.tenant,
        slo_class=line.slo_class,
        part=line.part,
        device_us=amount.device_us,
        cost=amount.cost,
        num_tokens=amount.num_tokens,
    )
