"""Leases, epochs and views; a machine compares the registry with a plain model of it."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace_controlplane.registry import Record, Registry

LEASE_S = 10.0


def record(replica_id: str = "w-0", epoch: str = "e1", **facts: object) -> Record:
    return replace(Record(replica_id, epoch, f"127.0.0.1:{replica_id[-1]}"), **facts)  # type: ignore[arg-type]


def test_a_replica_lives_for_one_lease() -> None:
    registry = Registry(lease_s=LEASE_S, now=0.0)
    registry.heartbeat(record(), 1.0)
    assert registry.expire(10.9) == []
    assert registry.expire(11.0) == ["w-0"]
    assert registry.get("w-0") is None


def test_a_lost_delete_event_leaves_no_ghost() -> None:
    """B74: W2 dies, nothing tells so; within the lease it is out, and a watcher that reconnects never sees it."""
    registry = Registry(lease_s=LEASE_S, now=0.0)
    for second in range(5):
        registry.heartbeat(record("w-1"), float(second))
        registry.heartbeat(record("w-2"), float(second))
    for second in range(5, 15):
        registry.heartbeat(record("w-1"), float(second))
        registry.expire(float(second))
    assert [each.id for each, _ in registry.view(15.0).records] == ["w-1"]


def test_after_a_restart_no_lease_ends_for_one_full_period() -> None:
    registry = Registry(lease_s=LEASE_S, now=100.0, restored=[record("w-1"), record("w-2")])
    assert registry.expire(109.9) == []
    registry.heartbeat(record("w-1"), 109.9)
    assert registry.expire(110.0) == ["w-2"]


def test_a_renewed_lease_is_no_change() -> None:
    registry = Registry(lease_s=LEASE_S, now=0.0)
    registry.heartbeat(record(), 0.0)
    revision = registry.revision
    registry.heartbeat(record(), 5.0)
    assert registry.revision == revision


def test_a_new_epoch_replaces_the_old_one_for_good() -> None:
    registry = Registry(lease_s=LEASE_S, now=0.0)
    assert registry.heartbeat(record(epoch="e1"), 0.0)
    assert registry.heartbeat(record(epoch="e2"), 1.0)
    assert not registry.heartbeat(record(epoch="e1"), 2.0), "the process of the old epoch must stop"
    assert not registry.heartbeat(record(epoch="e1", state="gone"), 2.0)
    current = registry.get("w-0")
    assert current is not None
    assert current.epoch == "e2"


def test_gone_ends_the_lease_at_once() -> None:
    registry = Registry(lease_s=LEASE_S, now=0.0)
    registry.heartbeat(record(), 0.0)
    assert registry.heartbeat(record(state="gone"), 1.0)
    assert registry.view(1.0).records == ()


def test_a_delta_names_what_changed_and_what_left() -> None:
    registry = Registry(lease_s=LEASE_S, now=0.0)
    registry.heartbeat(record("w-1"), 0.0)
    registry.heartbeat(record("w-2"), 0.0)
    before = registry.revision
    registry.heartbeat(record("w-1", state="ready"), 1.0)
    registry.remove("w-2")
    view = registry.view(1.0, since=before)
    assert (view.full, [each.id for each, _ in view.records], view.removed) == (False, ["w-1"], ("w-2",))


def test_a_replica_that_left_and_came_back_is_not_removed_by_the_delta() -> None:
    registry = Registry(lease_s=LEASE_S, now=0.0)
    registry.heartbeat(record("w-1"), 0.0)
    before = registry.revision
    registry.remove("w-1")
    registry.heartbeat(record("w-1", epoch="e2"), 1.0)
    view = registry.view(1.0, since=before)
    assert (len(view.records), view.removed) == (1, ())


def test_too_old_a_revision_gets_everything() -> None:
    registry = Registry(lease_s=LEASE_S, now=0.0)
    before = registry.revision
    for i in range(1500):
        registry.heartbeat(record(f"w-{i}"), 0.0)
        registry.remove(f"w-{i}")
    registry.heartbeat(record("w-last"), 0.0)
    assert registry.view(0.0, since=before).full
    assert not registry.view(0.0, since=registry.revision - 2).full
    assert registry.view(0.0, since=registry.revision + 7).full


class RegistryMachine(RuleBasedStateMachine):
    """Heartbeats, restarts, silence and watchers that fall behind, against a dict of leases."""

    ids = st.sampled_from(["w-0", "w-1", "w-2"])

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.registry = Registry(lease_s=LEASE_S, now=0.0)
        self.leases: dict[str, tuple[Record, float]] = {}
        self.retired: set[tuple[str, str]] = set()
        self.num_epochs = 0
        self.seen: dict[str, Record] = {}
        self.seen_revision: int | None = None

    @rule(replica_id=ids, state=st.sampled_from(["loading", "ready", "draining"]), fresh=st.booleans())
    def beat(self, replica_id: str, state: str, fresh: bool) -> None:
        known = self.leases.get(replica_id)
        if fresh or known is None:
            self.num_epochs += 1
            epoch = f"e{self.num_epochs}"
            if known is not None:
                self.retired.add((replica_id, known[0].epoch))
        else:
            epoch = known[0].epoch
        beat = record(replica_id, epoch, state=state)
        assert self.registry.heartbeat(beat, self.now)
        self.leases[replica_id] = (beat, self.now + LEASE_S)

    @rule(replica_id=ids)
    def zombie_beat(self, replica_id: str) -> None:
        """Only epochs replaced within this life of the id are known; the registry keeps the last few of them."""
        known = self.leases.get(replica_id)
        mine = sorted(epoch for owner, epoch in self.retired if owner == replica_id)
        if known is not None and mine:
            latest = max(mine, key=lambda epoch: int(epoch[1:]))
            assert not self.registry.heartbeat(record(replica_id, latest), self.now)

    @rule(replica_id=ids)
    def leave(self, replica_id: str) -> None:
        known = self.leases.pop(replica_id, None)
        if known is not None:
            self.registry.heartbeat(replace(known[0], state="gone"), self.now)
            self.retired = {entry for entry in self.retired if entry[0] != replica_id}

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        late = {name for name, (_, until) in self.leases.items() if until <= self.now}
        assert set(self.registry.expire(self.now)) == late
        for name in late:
            del self.leases[name]
            self.retired = {entry for entry in self.retired if entry[0] != name}

    @rule()
    def catch_up(self) -> None:
        """A watcher that applies what it is sent knows what there is."""
        view = self.registry.view(self.now, self.seen_revision)
        if view.full:
            self.seen.clear()
        self.seen |= {each.id: each for each, _ in view.records}
        for name in view.removed:
            self.seen.pop(name, None)
        self.seen_revision = view.revision
        assert self.seen == {name: known for name, (known, _) in self.leases.items()}

    @invariant()
    def everyone_with_a_lease_is_there(self) -> None:
        assert {each.id: each for each in self.registry.records()} == {k: v for k, (v, _) in self.leases.items()}


TestRegistryMachine = RegistryMachine.TestCase
