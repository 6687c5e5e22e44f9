"""A tenant's limits and what is used of them, for operators. Knows no request."""

from collections.abc import Iterable

from headrace.v1 import policy_pb2 as pb
from headrace_policy.book import Book
from headrace_policy.limits import Limit
from headrace_policy.redis_ledger import RedisLedger


async def report(book: Book, ledger: RedisLedger, tenant: str, models_seen: Iterable[str]) -> pb.QuotaReport:
    """Every limit with every subject that is known; raises StoreAwayError."""
    limits = known_limits(book, tenant, models_seen)
    levels = await ledger.levels(tenant, limits)
    return pb.QuotaReport(
        levels=[
            pb.QuotaLevel(
                limit=limit.name,
                scope=f"{limit.scope}:{limit.subject}" if limit.subject else limit.scope,
                capacity=limit.capacity,
                level=level,
            )
            for limit, level in zip(limits, levels, strict=True)
        ]
    )


def known_limits(book: Book, tenant: str, models_seen: Iterable[str] = ()) -> list[Limit]:
    """A limit that each key, project or model has of its own is one entry for each that is known."""
    keys = [key for key in book.keys.values() if key.tenant == tenant]
    row = book.tenants[tenant]
    subjects: dict[str, set[str]] = {
        "tenant": {""},
        "key": {key.key_id for key in keys},
        "project": {key.project for key in keys if key.project},
        "model": {*models_seen, *row.models, *(model for key in keys for model in key.models)},
    }
    chosen: dict[tuple[str, str, str], Limit] = {}
    for limit in sorted((*row.limits, *(own for key in keys for own in key.limits)), key=lambda one: one.subject != ""):
        for subject in {limit.subject} if limit.subject else subjects[limit.scope]:
            chosen[limit.name, limit.scope, subject] = Limit(limit.name, limit.capacity, limit.scope, subject)
    return [chosen[place] for place in sorted(chosen)]
