"""What this process may grant a tenant while Redis is away (decision 8): two buckets a tenant, in memory, bounded.

Nothing here is settled: what a response really used is charged in Redis when its gateway can settle again.
"""

import time
from collections.abc import Callable, Mapping

from headrace_policy import limits
from headrace_policy.book import Book
from headrace_policy.decide import Declared, Prices, reserved


class Allowance:
    """Grants within ``local_allowance`` of the snapshot; a tenant without one gets nothing."""

    def __init__(self, clock_ms: Callable[[], float] = lambda: time.monotonic() * 1000) -> None:
        self._clock_ms = clock_ms
        self._levels: dict[tuple[str, str], tuple[float, float]] = {}

    def grants(self, book: Book, tenant: str, bounds: Declared) -> bool:
        """Takes the request from the tenant's buckets, or leaves them as they are and says no."""
        allowed = book.tenants[tenant].allowance
        if allowed is None:
            return False
        now, units = self._clock_ms(), _units(bounds)
        levels = {limit.name: self._level(tenant, limit, now) for limit in allowed}
        if any(limits.wait_ms(limit, levels[limit.name], units[limit.name]) for limit in allowed):
            return False
        for name, level in levels.items():
            self._levels[tenant, name] = (level + units[name], now)
        return True

    def _level(self, tenant: str, limit: limits.Limit, now: float) -> float:
        level, at = self._levels.get((tenant, limit.name), (0.0, now))
        return limits.leaked(level, limit.rate, now - at)


def _units(bounds: Declared) -> Mapping[str, float]:
    return {name: reserved(name, bounds, Prices()) for name in ("rpm", "tpm")}
