"""One policy service without its process: real ledger, real journal; called as gateways call it."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.v1 import policy_pb2 as pb
from headrace.v1 import snapshot_pb2
from headrace_policy import identity
from headrace_policy.admitter import Admitter
from headrace_policy.allowance import Allowance
from headrace_policy.book import Shelf
from headrace_policy.bookkeeper import Bookkeeper
from headrace_policy.guard import Guard
from headrace_policy.journal import Journal
from headrace_policy.redis_ledger import RedisLedger
from headrace_policy.redis_link import RedisLink
from headrace_policy.regrets import Regrets
from headrace_policy.screening.doorway import Doorway
from headrace_policy.screening.jury import Jury
from headrace_policy.servicer import Desk, PolicyServicer
from tests.unit.policy.fakes import KEY, reservation, section, settlement


class Office:
    def __init__(
        self,
        link: RedisLink,
        lease_ms: int,
        journal: Journal,
        limits: Sequence[snapshot_pb2.Limit],
        fields: Mapping[str, Any],
    ) -> None:
        self.shelf = Shelf()
        self.shelf.apply(section(*limits, **fields))
        ledger, self.journal = RedisLedger(link, lease_ms), journal
        self.bookkeeper = Bookkeeper(self.shelf, ledger, link, self.journal)
        self.regrets = Regrets(self.shelf, self.bookkeeper)
        self.guard = Guard(None, lambda: self.shelf.book.secret)
        jury = Jury(self.guard)
        admitter = Admitter(self.shelf, ledger, Allowance(), self.regrets, Doorway(jury))
        self.servicer = PolicyServicer(Desk(self.shelf, ledger, admitter, self.bookkeeper, self.journal, jury))

    def close(self) -> None:
        self.journal.close()

    def who(self, credential: str = KEY) -> pb.Identity:
        return identity.authenticate(self.shelf.book, credential, "", 0.0)

    def ask(self, response_id: str, num_prompt: int = 8, max_output: int = 50, n: int = 1) -> pb.Reservation:
        return reservation(response_id, self.who(), num_prompt, max_output, n)

    async def admit(self, response_id: str, *bounds: int, **fields: Any) -> pb.AdmitResponse:
        request = pb.AdmitRequest(reservation=self.ask(response_id, *bounds), **fields)
        return await self.servicer.Admit(request, None)

    async def settle(self, held: pb.Reservation, *args: Any, **fields: Any) -> str:
        answer = await self.servicer.Settle(settlement(held, *args, **fields), None)
        return pb.SettleResponse.State.Name(answer.state).removeprefix("STATE_").lower()

    async def renew(self, *held: pb.Reservation) -> list[str]:
        answer = await self.servicer.Renew(pb.RenewRequest(gateway_id="g1", reservations=held), None)
        return [result.state for result in answer.results]

    async def level(self, name: str, scope: str = "tenant") -> float:
        report = await self.servicer.GetQuota(pb.QuotaQuery(tenant="acme"), None)
        return next(row.level for row in report.levels if (row.limit, row.scope) == (name, scope))

    async def usage(self, tenant: str = "acme") -> list[pb.UsageRow]:
        return [row async for row in self.servicer.GetUsage(pb.UsageQuery(tenant=tenant), None)]
