"""The usage journal's port: every settlement and correction, kept for good. Knows no Redis and no way to keep them.

A row is here before it leaves Redis; the same row again changes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class JournalError(Exception):
    """Rows could not be written or read; none of those given was kept, or it is the same as if none was."""


@dataclass(frozen=True)
class Row:
    """One settlement as it was applied; ``settlement`` is a serialized SettleRequest."""

    tenant: str
    row_id: str
    """Place in the tenant's stream: ``<ms>-<n>`` by the clock of Redis."""
    response_id: str
    cost: float
    correction: bool
    settlement: bytes

    @property
    def settled_at_ms(self) -> int:
        return int(self.row_id.partition("-")[0])


class Journal(Protocol):
    """Safe to use from several threads; raises JournalError."""

    def add(self, rows: Sequence[Row]) -> None:
        """All of them, durably."""

    def between(self, tenant: str, from_ms: int, to_ms: int) -> Iterator[Row]:
        """Rows of one tenant (empty = all) settled in [from_ms, to_ms), by time, tenant and row id."""

    def close(self) -> None: ...
