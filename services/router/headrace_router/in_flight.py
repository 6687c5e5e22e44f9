"""What this router sent where and did not hear of yet (DESIGN section 7). Pure: the clock is an argument.

A decision adds to a replica's load, and its tokens to the replica's queue, until a load report lists it or UNSEEN_S
pass; it is in flight until its outcome is reported, once. What was sent lately fades: who got least has the oldest
pages to give up. Knows no replica's own numbers.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace_router.gateways import Gateways

UNSEEN_S = 2.0
RECENT_S = 900.0
# The outcome of a gateway that nobody can say to be gone, for the control plane started after it died.
FORGOTTEN_S = 3600.0


@dataclass(frozen=True)
class Sent:
    """One decision; ``at`` in seconds. ``num_new_tokens`` of its prompt are to be computed; it may come to
    ``num_bound_tokens`` of KV."""

    decision_id: str
    replica_id: str
    epoch: str
    at: float
    num_new_tokens: int = 0
    num_bound_tokens: int = 0
    gateway_id: str = ""

    @property
    def weight(self) -> float:
        """What was asked of the replica: a quarter for what is computed and fills its cache, the rest for all of it.

        Balancing either alone leaves the other uneven (the replay in benchmarks/routing.py).
        """
        return self.num_new_tokens / 4 + self.num_bound_tokens * 3 / 4


class Unseen(NamedTuple):
    """Decisions that no report has listed, and their tokens."""

    num_requests: int = 0
    num_new_tokens: int = 0
    num_bound_tokens: int = 0


@dataclass
class _Account:
    """One replica's."""

    open: set[str] = field(default_factory=set)
    unseen: OrderedDict[str, Sent] = field(default_factory=OrderedDict)
    num_new_tokens: int = 0
    num_bound_tokens: int = 0

    def forget(self, decision_id: str) -> None:
        """It is not unseen any more."""
        sent = self.unseen.pop(decision_id, None)
        if sent is not None:
            self.num_new_tokens -= sent.num_new_tokens
            self.num_bound_tokens -= sent.num_bound_tokens


class InFlight:
    """Decisions by id and by replica; every operation takes constant time."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Sent] = OrderedDict()
        self._accounts: dict[str, _Account] = {}
        self._recent: dict[str, tuple[float, float]] = {}
        self.gateways = Gateways()
        """Who is to report them."""
        self.num_added = self.num_told = self.num_void = 0
        """Decisions in all; with a known outcome; whose replica is no more, or that nobody remembers."""

    def __len__(self) -> int:
        return len(self._open)

    def get(self, decision_id: str) -> Sent | None:
        return self._open.get(decision_id)

    def add(self, sent: Sent) -> None:
        self.forget(sent.at)
        self._open[sent.decision_id] = sent
        self.gateways.add(sent.gateway_id, sent.decision_id)
        self.num_added += 1
        account = self._accounts.setdefault(sent.replica_id, _Account())
        account.open.add(sent.decision_id)
        account.unseen[sent.decision_id] = sent
        account.num_new_tokens += sent.num_new_tokens
        account.num_bound_tokens += sent.num_bound_tokens
        recent = self.num_recent_tokens(sent.replica_id, sent.at)
        self._recent[sent.replica_id] = (recent + sent.weight, sent.at)

    def forget(self, now: float) -> None:
        """Nobody will tell any more what became of the oldest."""
        while self._open and next(iter(self._open.values())).at < now - FORGOTTEN_S:
            self._void(next(iter(self._open)))

    def seen(self, replica_id: str, decision_ids: list[str]) -> None:
        """A load report counts these now."""
        account = self._accounts.get(replica_id)
        for decision_id in decision_ids if account else ():
            account.forget(decision_id)  # type: ignore[union-attr]

    def release(self, decision_id: str) -> Sent | None:
        """The outcome is known; None if it was known already or the decision is not one of ours."""
        sent = self._pop(decision_id)
        self.num_told += sent is not None
        return sent

    def _void(self, decision_id: str) -> None:
        self.num_void += self._pop(decision_id) is not None

    def _pop(self, decision_id: str) -> Sent | None:
        sent = self._open.pop(decision_id, None)
        if sent is None:
            return None
        self.gateways.discard(sent.gateway_id, decision_id)
        account = self._accounts[sent.replica_id]
        account.open.discard(decision_id)
        account.forget(decision_id)
        if not account.open:
            del self._accounts[sent.replica_id]
        return sent

    def unseen(self, replica_id: str, now: float) -> Unseen:
        """Decisions of the last UNSEEN_S that no report has listed."""
        account = self._accounts.get(replica_id)
        if account is None:
            return _NOTHING
        while account.unseen:
            decision_id, oldest = next(iter(account.unseen.items()))
            if oldest.at > now - UNSEEN_S:
                break
            account.forget(decision_id)
        return Unseen(len(account.unseen), account.num_new_tokens, account.num_bound_tokens)

    def num_unseen(self, replica_id: str, now: float) -> int:
        return self.unseen(replica_id, now).num_requests

    def num_open(self, replica_id: str) -> int:
        account = self._accounts.get(replica_id)
        return len(account.open) if account else 0

    def num_by_replica(self) -> int:
        """Decisions in flight, counted by their replicas: as many as there are."""
        return sum(len(account.open) for account in self._accounts.values())

    def num_recent_tokens(self, replica_id: str, now: float) -> float:
        """Weight of what was sent there, in tokens, each fading with RECENT_S."""
        amount, at = self._recent.get(replica_id, (0.0, now))
        return amount * math.exp((at - now) / RECENT_S)

    def drop_replica(self, replica_id: str) -> None:
        """The replica, or this epoch of it, is no more: nothing runs there."""
        account = self._accounts.get(replica_id)
        for decision_id in list(account.open) if account else ():
            self._void(decision_id)
        self._recent.pop(replica_id, None)


_NOTHING = Unseen()
