"""The ledger's plain data: what is asked of it and what it answers. Two ledgers speak it: in Redis and in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace_policy.decide import Billed, Prices
from headrace_policy.limits import Limit

RANKS = {"sweep": 1, "orphan": 2, "owner": 3}


@dataclass(frozen=True)
class Charge:
    """One limit that a reservation is charged to: its place, the units it holds, and its leak per millisecond."""

    name: str
    scope: str
    subject: str
    units: float
    rate: float


@dataclass(frozen=True)
class Terms:
    """What one reservation holds, and the prices that it will be settled at."""

    charges: tuple[Charge, ...] = ()
    prices: Prices = field(default_factory=Prices)


@dataclass(frozen=True)
class Admission:
    """One request: ``terms.charges[i]`` is what it needs of ``limits[i]``; ``message`` is kept for the sweep."""

    response_id: str
    limits: Sequence[Limit]
    terms: Terms
    message: bytes
    retry_of: str = ""


@dataclass(frozen=True)
class Verdict:
    """``state``: admitted, held (before), refused, settled (before) or retry_of (unknown or not failed).

    ``levels`` in the order of the limits, after this request if it was admitted; ``refusing`` indexes the limits.
    """

    state: str
    now_ms: int
    levels: tuple[float, ...]
    at_ms: int = 0
    terms: Terms = field(default_factory=Terms)
    wait_ms: float = 0.0
    refusing: int = -1


@dataclass(frozen=True)
class Held:
    """One running reservation, whole."""

    response_id: str
    terms: Terms
    message: bytes


@dataclass(frozen=True)
class Closing:
    """One settlement; ``at_ms`` and ``terms`` count only where Redis has lost its own."""

    response_id: str
    source: str
    kind: str
    billed: Billed
    terms: Terms
    at_ms: int
    message: bytes
    only_expired: bool = False


@dataclass(frozen=True)
class Found:
    """What a tour finds at one tenant: rows in its journal stream, and messages of leases that ran out."""

    num_rows: int
    expired: tuple[bytes, ...]


@dataclass(frozen=True)
class Closed:
    """``state``: applied, duplicate or corrected."""

    state: str
    now_ms: int
    cost: float
    row_id: str = ""
    """Place in the tenant's journal stream, if a row was written."""
