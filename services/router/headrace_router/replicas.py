"""What this router knows of each replica: what the registry lists, and what the replica itself says. Does no I/O.

The registry says who exists; readiness, load and epoch are the replica's own word. A list of another registry (the
control plane came back with nothing) does not end what still answers: it gets GRACE_S to be listed again.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from headrace.v1 import fleet_pb2, worker_pb2
from headrace_router.breaker import Breaker
from headrace_router.fleet_rules import FleetRules, Pool
from headrace_router.in_flight import InFlight
from headrace_router.pairing import Link
from headrace_router.prediction import UNKNOWN, StepCost
from headrace_router.prefix_index import Group, record_of
from headrace_router.scoring import View
from headrace_router.shortlist import shortlist

STALE_S = 3.0
GRACE_S = 15.0
_PREFIX = "REPLICA_STATE_"


class Facts(NamedTuple):
    """What of a view stays from one decision to the next: the leading fields of `View`, read from messages once."""

    id: str
    made_of: worker_pb2.Description | None
    pool: Pool | None
    what: tuple[str, str, str, str, str, tuple[str, ...], bool, bool, int]
    load: tuple[int, int, int, int, int, int, int]

    @classmethod
    def of(cls, replica: "Replica", pool: Pool | None) -> "Facts":
        row, described, load = replica.row, replica.description, replica.load
        context, sequence = described.max_context_tokens if described else 0, pool.max_sequence_tokens if pool else 0
        page_tokens = described.page_tokens if described else 0
        what = (
            row.ref.id,
            replica.epoch or row.ref.epoch,
            row.model,
            row.revision,
            row.role or "both",
            pool.classes if pool else (),
            described.features.grammar if described else False,
            described.features.logprobs if described else False,
            min(context, sequence) if context and sequence else context or sequence,
        )
        carried = (
            load.num_running,
            load.num_waiting,
            load.max_waiting,
            load.num_queued_tokens,
            load.num_held_pages * page_tokens,
            load.num_promised_pages * page_tokens,
            load.num_total_pages * page_tokens,
        )
        return cls(row.ref.id, described, pool, what, carried)


@dataclass
class Replica:
    """One replica; times in seconds on one monotonic clock."""

    row: fleet_pb2.Replica
    """As the registry lists it."""
    first_seen: float
    epoch: str = ""
    state: str = "loading"
    connected: bool = False
    load: worker_pb2.Load = field(default_factory=worker_pb2.Load)
    load_at: float = float("-inf")
    cost: StepCost = UNKNOWN
    bytes_per_s: float = 1e9
    latency_s: float = 0.01
    record: bytes = b""
    """Of this epoch, as the prefix index has it."""
    description: worker_pb2.Description | None = None
    breaker: Breaker = field(default_factory=Breaker)
    unlisted_at: float | None = None
    facts: Facts | None = None
    """None: the row, the epoch or the load is another since they were read."""

    @property
    def ready(self) -> bool:
        return self.connected and self.state == "ready"


class ReplicaTable:
    """All replicas; ``listed`` and ``changed`` are set and replaced when the list, or anyone's readiness, changes."""

    def __init__(self, rules: FleetRules, in_flight: InFlight, clock: Callable[[], float] = time.monotonic) -> None:
        self._rules, self._in_flight, self._clock = rules, in_flight, clock
        self._replicas: dict[str, Replica] = {}
        self._of_model: dict[str, list[Replica]] = {}
        self._prefills: dict[str, list[Replica]] = {}
        self._registry_id = ""
        self.listed, self.changed = asyncio.Event(), asyncio.Event()
        self.last_cost: dict[str, StepCost] = {}
        """Of the replica of a model that published last: for predictions while none is ready."""
        self.startup_s: dict[str, float] = {}
        """Time from first seen to ready, by model."""

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def get(self, replica_id: str) -> Replica | None:
        return self._replicas.get(replica_id)

    def of_model(self, model: str) -> Sequence[Replica]:
        found = self._of_model.get(model)
        if found is None:
            found = self._of_model[model] = [replica for replica in self if replica.row.model == model]
        return found

    def num_ready(self, model: str) -> int:
        return sum(replica.ready for replica in self.of_model(model))

    def apply(self, update: fleet_pb2.ReplicaSet) -> None:
        """A list, or what changed of it."""
        another = update.registry_id != self._registry_id
        assert update.full or not another, "a watch begins with the whole list"
        self._registry_id = update.registry_id
        for row in update.replicas:
            self._list(row)
        gone = set(update.removed)
        if update.full:
            gone = self._replicas.keys() - {row.ref.id for row in update.replicas}
        for replica_id in gone & self._replicas.keys():
            replica = self._replicas[replica_id]
            if update.full and another and replica.connected:
                replica.unlisted_at = self._clock()
            else:
                self._drop(replica_id)
        self._wake()
        self.listed.set()
        self.listed = asyncio.Event()

    def drop_unlisted(self) -> None:
        """Ends the grace of replicas that no registry listed again."""
        limit = self._clock() - GRACE_S
        late = [r.row.ref.id for r in self if r.unlisted_at is not None and (r.unlisted_at <= limit or not r.connected)]
        for replica_id in late:
            self._drop(replica_id)
        if late:
            self._wake()

    def snapshot(self) -> fleet_pb2.ReplicaSet:
        """The list, for the disk."""
        return fleet_pb2.ReplicaSet(full=True, replicas=[r.row for r in self], registry_id=self._registry_id)

    def set_connected(self, replica: Replica, connected: bool) -> None:
        if replica.connected != connected:
            replica.connected = connected
            self._wake()

    def restart(self, replica: Replica, epoch: str) -> None:
        """A new epoch is a new process, or an emptied cache: what was known of the old one is void."""
        if replica.epoch:
            self._in_flight.drop_replica(replica.row.ref.id)
            replica.first_seen = self._clock()
        replica.epoch, replica.breaker, replica.record = epoch, Breaker(), record_of(replica.row.ref.id, epoch)
        replica.load, replica.load_at, replica.facts = worker_pb2.Load(), float("-inf"), None
        self._wake()

    def set_state(self, replica: Replica, epoch: str, state: worker_pb2.ReplicaState) -> None:
        if epoch != replica.epoch:
            self.restart(replica, epoch)
        name = worker_pb2.ReplicaState.Name(state).removeprefix(_PREFIX).lower()
        if name == "ready" and replica.state != "ready":
            self.startup_s[replica.row.model] = self._clock() - replica.first_seen
        if name != replica.state:
            replica.state = name
            self._wake()

    def set_load(self, replica: Replica, load: worker_pb2.Load) -> None:
        self._in_flight.seen(replica.row.ref.id, list(load.decisions))
        replica.load, replica.load_at, replica.facts = load, self._clock(), None

    def set_coefficients(self, replica: Replica, model: worker_pb2.StepModel) -> None:
        replica.cost = self.last_cost[replica.row.model] = StepCost.of(model.coefficients)

    def set_transfer(self, replica: Replica, model: worker_pb2.TransferModel) -> None:
        if model.bytes_per_s > 0:
            replica.bytes_per_s, replica.latency_s = model.bytes_per_s, max(0.0, model.latency_s)

    def may_serve(self, replica_id: str, gateway_id: str) -> bool:
        """Whether something of this gateway may run there: it is attached, or the replica does not say now."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return False
        says = replica.connected and self._clock() - replica.load_at <= STALE_S
        return not says or gateway_id in replica.load.gateways

    def link(self, replica_id: str) -> Link:
        """How KV comes in at this replica."""
        replica = self._replicas[replica_id]
        described = replica.description
        if described is None:
            return Link(bytes_per_s=replica.bytes_per_s, latency_s=replica.latency_s)
        sizes = described.kv_bytes_per_token, described.page_tokens
        return Link(*sizes, replica.bytes_per_s, replica.latency_s)

    def groups(self, model: str) -> set[Group]:
        """Whose pages of this model's prompts have the same keys."""
        known = (replica.description for replica in self.of_model(model))
        return {Group(each.kv_context, each.page_tokens) for each in known if each is not None and each.page_tokens}

    def views(self, model: str, hits: Mapping[bytes, int]) -> list[View]:
        """Replicas of a model as they are now; ``hits``: tokens of the prompt at hand, by record."""
        now = self._clock()
        return [self._view(replica, now, hits) for replica in self.of_model(model)]

    def some_views(self, model: str, hits: Mapping[bytes, int], session: str, draws: Random) -> list[View]:
        """Those of `views` that are worth a look: all of them in a small fleet."""
        replicas, now = self.of_model(model), self._clock()
        held = {at: hits[each.record] for at, each in enumerate(replicas) if each.record in hits} if hits else {}
        return [self._view(replicas[at], now, hits) for at in shortlist(len(replicas), held, session, draws)]

    def prefill_views(self, model: str, kv_context: bytes, draws: Random) -> list[View]:
        """Whoever prefills for others and has the same KV: a look at some of a large fleet may have missed them all."""
        now = self._clock()
        prefills = [(each, each.description) for each in self._prefills_of(model)]
        same = [each for each, described in prefills if described is not None and described.kv_context == kv_context]
        return [self._view(same[at], now, {}) for at in shortlist(len(same), {}, "", draws)]

    def _prefills_of(self, model: str) -> Sequence[Replica]:
        found = self._prefills.get(model)
        if found is None:
            found = self._prefills[model] = [each for each in self.of_model(model) if each.row.role == "prefill"]
        return found

    def _view(self, replica: Replica, now: float, hits: Mapping[bytes, int]) -> View:
        pool = self._rules.pools.get(replica.row.pool)
        facts = replica.facts
        if facts is None or facts.made_of is not replica.description or facts.pool is not pool:
            facts = replica.facts = Facts.of(replica, pool)
        unseen = self._in_flight.unseen(facts.id, now)
        return View(
            *facts.what,
            *facts.load,
            replica.state,
            replica.connected,
            not replica.breaker.admits(now),
            now - replica.load_at <= STALE_S,
            *unseen,
            self._in_flight.num_open(facts.id),
            self._in_flight.num_recent_tokens(facts.id, now),
            hits.get(replica.record, 0),
            replica.cost,
        )

    def _list(self, row: fleet_pb2.Replica) -> None:
        known = self._replicas.get(row.ref.id)
        self._of_model.clear()
        self._prefills.clear()
        if known is None or known.row.ref.endpoint != row.ref.endpoint:
            if known is not None:
                self._drop(row.ref.id)
            self._replicas[row.ref.id] = Replica(row, self._clock())
        else:
            known.row, known.unlisted_at, known.facts = row, None, None

    def _drop(self, replica_id: str) -> None:
        del self._replicas[replica_id]
        self._of_model.clear()
        self._prefills.clear()
        self._in_flight.drop_replica(replica_id)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
