"""What this router sent where and did not hear of yet (DESIGN section 7). Pure: the clock is an argument.

A decision adds to a replica's load until a load report lists it or UNSEEN_S pass; it is in flight until its outcome is
reported, once. Knows no replica's own numbers.
"""

from collections import OrderedDict
from dataclasses import dataclass

UNSEEN_S = 2.0
# Outcomes of a gateway that died are never reported.
FORGOTTEN_S = 3600.0


@dataclass(frozen=True)
class Sent:
    """One decision; ``at`` in seconds."""

    decision_id: str
    replica_id: str
    epoch: str
    at: float


class InFlight:
    """Decisions by id and by replica; every operation takes constant time."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Sent] = OrderedDict()
        self._by_replica: dict[str, set[str]] = {}
        self._unseen: dict[str, OrderedDict[str, float]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, sent: Sent) -> None:
        while self._open and next(iter(self._open.values())).at < sent.at - FORGOTTEN_S:
            self.release(next(iter(self._open)))
        self._open[sent.decision_id] = sent
        self._by_replica.setdefault(sent.replica_id, set()).add(sent.decision_id)
        self._unseen.setdefault(sent.replica_id, OrderedDict())[sent.decision_id] = sent.at

    def seen(self, replica_id: str, decision_ids: list[str]) -> None:
        """A load report counts these now."""
        unseen = self._unseen.get(replica_id)
        for decision_id in decision_ids if unseen else ():
            unseen.pop(decision_id, None)  # type: ignore[union-attr]

    def release(self, decision_id: str) -> Sent | None:
        """The outcome is known; None if it was known already or the decision is not one of ours."""
        sent = self._open.pop(decision_id, None)
        if sent is None:
            return None
        self._by_replica[sent.replica_id].discard(decision_id)
        self._unseen[sent.replica_id].pop(decision_id, None)
        if not self._by_replica[sent.replica_id]:
            del self._by_replica[sent.replica_id], self._unseen[sent.replica_id]
        return sent

    def num_unseen(self, replica_id: str, now: float) -> int:
        """Decisions of the last UNSEEN_S that no report has listed."""
        unseen = self._unseen.get(replica_id)
        while unseen and next(iter(unseen.values())) <= now - UNSEEN_S:
            unseen.popitem(last=False)
        return len(unseen) if unseen else 0

    def num_open(self, replica_id: str) -> int:
        return len(self._by_replica.get(replica_id, ()))

    def drop_replica(self, replica_id: str) -> None:
        """The replica, or this epoch of it, is no more: nothing runs there."""
        for decision_id in list(self._by_replica.get(replica_id, ())):
            self.release(decision_id)
