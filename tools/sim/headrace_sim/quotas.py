"""What tenants may spend: production's limits and its in-memory ledger, on the virtual clock. Knows no replica."""

from collections.abc import Mapping

from headrace_controlplane.fleet.tenants import Tenant
from headrace_policy.decide import Billed, Declared, Prices, reserved
from headrace_policy.ledger import Admission, Charge, Closing, Terms
from headrace_policy.limits import REASONS, Caller, Limit, applicable
from headrace_policy.memory_ledger import MemoryLedger
from headrace_sim.errors import SimulationError
from headrace_sim.job import Job

_LEASE_MS = 86_400_000  # nobody dies who would have to renew
_NO_PRICES = Prices()


class Quotas:
    """Reserves and settles; a tenant without limits costs nothing."""

    def __init__(self, tenants: Mapping[str, Tenant]) -> None:
        self._limits = {
            name: [Limit(each.name, each.capacity, each.scope, each.subject) for each in tenant.limits]
            for name, tenant in tenants.items()
        }
        self._ledgers = {name: MemoryLedger(_LEASE_MS) for name, limits in self._limits.items() if limits}

    def admit(self, job: Job, tenant: str, now: float) -> str | None:
        """The reason of a refusal, or None; then it must be settled. SimulationError for who is no tenant."""
        if tenant not in self._limits:
            raise SimulationError(f"the workload names a tenant {tenant!r}; the fleet has {', '.join(self._limits)}")
        ledger = self._ledgers.get(tenant)
        if ledger is None:
            return None
        arrival = job.arrival
        limits = applicable(self._limits[tenant], Caller(tenant, "", "", arrival.model))
        declared = Declared(arrival.num_prompt, arrival.max_output, 1)
        charges = tuple(
            Charge(each.name, each.scope, each.subject, reserved(each.name, declared, _NO_PRICES), each.rate)
            for each in limits
        )
        asked = Admission(_name(job), limits, Terms(charges), b"")
        verdict = ledger.admit(asked, round(now * 1000))
        return REASONS[limits[verdict.refusing].name] if verdict.state == "refused" else None

    def settle(self, job: Job, tenant: str, now: float) -> None:
        """Give back what was not used: a failure is charged its request, a refusal nothing."""
        ledger = self._ledgers.get(tenant)
        if ledger is None:
            return
        billed = Billed()
        if job.ending != "refused":
            served = job.ending != "failed"
            billed = Billed(
                num_requests=1,
                num_uncached=job.arrival.num_prompt - job.num_cached if served else 0,
                num_cached=job.num_cached if served else 0,
                num_output=job.num_generated if served else 0,
            )
        now_ms = round(now * 1000)
        ledger.settle(Closing(_name(job), "owner", job.ending, billed, Terms(), now_ms, b""), now_ms)

    def used(self, tenant: str, limit: str, now: float) -> float:
        """Units of a tenant-wide limit that count now."""
        found = next(each for each in self._limits[tenant] if each.name == limit)
        return self._ledgers[tenant].level(found, round(now * 1000))


def _name(job: Job) -> str:
    return str(job.arrival.number)
