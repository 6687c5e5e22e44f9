"""Finals whose gateway went away before it acknowledged them: who may have them, and who was offered them.

An orphan belongs for two seconds to the gateway instance that submitted it, then to any. It is offered to one mailbox
at a time, and again to another if that one goes away too. Knows no engine; the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace_worker.attempts import Attempt
from headrace_worker.mailbox import Mailbox

RESERVED_S = 2.0
# Beyond this the oldest are dropped: policy's lease sweep is the last resort.
MAX_ORPHANS = 100_000


@dataclass(slots=True)
class _Orphan:
    attempt: Attempt
    free_at_s: float
    offered_to: Mailbox | None = None


class Orphans:
    """Attempts without an Attach, oldest first, and the mailboxes that may be offered their finals."""

    def __init__(self, replica_id: str) -> None:
        self._replica_id = replica_id
        self._orphans: dict[tuple[str, int], _Orphan] = {}
        self._mailboxes: dict[Mailbox, str] = {}

    def __len__(self) -> int:
        return len(self._orphans)

    def attach(self, mailbox: Mailbox, gateway_id: str) -> None:
        """This gateway can be offered orphans from now on."""
        self._mailboxes[mailbox] = gateway_id

    def detach(self, mailbox: Mailbox) -> None:
        """It cannot any more, and what it was offered is open again."""
        self._mailboxes.pop(mailbox, None)
        for orphan in self._orphans.values():
            if orphan.offered_to is mailbox:
                orphan.offered_to = None

    def add(self, attempt: Attempt, now: float) -> Attempt | None:
        """Keep an attempt whose Attach has ended; returns one that had to be dropped for it."""
        self._orphans[attempt.key] = _Orphan(attempt, now + RESERVED_S)
        if len(self._orphans) <= MAX_ORPHANS:
            return None
        oldest = next(iter(self._orphans))
        return self._orphans.pop(oldest).attempt

    def discard(self, attempt: Attempt) -> None:
        """It was acknowledged, or there is nothing to settle."""
        self._orphans.pop(attempt.key, None)

    def offer(self, now: float) -> None:
        """Put every orphan that has ended and is open into a mailbox that may have it."""
        for orphan in self._orphans.values():
            if orphan.offered_to is not None or not orphan.attempt.ended:
                continue
            mailbox = next(self._takers(orphan, now), None)
            if mailbox is not None:
                orphan.offered_to = mailbox
                for message in orphan.attempt.orphans(self._replica_id):
                    mailbox.put_orphan(message)

    def _takers(self, orphan: _Orphan, now: float) -> Iterator[Mailbox]:
        """The instance that submitted it, if it is here; after the reserved time anyone."""
        own = orphan.attempt.gateway_id
        yield from (mailbox for mailbox, gateway_id in self._mailboxes.items() if gateway_id == own)
        if now >= orphan.free_at_s:
            yield from self._mailboxes
