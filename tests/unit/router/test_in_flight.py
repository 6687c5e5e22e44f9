"""Own decisions: counted until seen, released once, never leaking."""

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace_router.in_flight import FORGOTTEN_S, RECENT_S, UNSEEN_S, InFlight, Sent


def sent(name: str, replica_id: str = "w-1", at: float = 0.0) -> Sent:
    return Sent(name, replica_id, "e1", at)


def test_a_decision_counts_until_a_report_lists_it() -> None:
    flight = InFlight()
    flight.add(sent("d1"))
    flight.add(sent("d2"))
    flight.seen("w-1", ["d1", "somebody else's"])
    assert (flight.num_unseen("w-1", 0.1), flight.num_open("w-1")) == (1, 2)


def test_a_decision_counts_for_two_seconds_at_most() -> None:
    flight = InFlight()
    flight.add(sent("d1"))
    assert flight.num_unseen("w-1", UNSEEN_S - 0.01) == 1
    assert flight.num_unseen("w-1", UNSEEN_S) == 0
    assert flight.num_open("w-1") == 1


def test_release_works_once() -> None:
    """B91: released twice, the count is still right."""
    flight = InFlight()
    flight.add(sent("d1"))
    assert flight.release("d1") == sent("d1")
    assert flight.release("d1") is None
    assert flight.release("never made") is None
    assert (flight.num_open("w-1"), flight.num_unseen("w-1", 0.0)) == (0, 0)


def test_what_nobody_ever_reports_is_forgotten() -> None:
    flight = InFlight()
    flight.add(sent("d1"))
    flight.add(sent("d2", at=FORGOTTEN_S + 1))
    assert flight.num_open("w-1") == 1


def test_a_replica_that_is_no_more_carries_nothing() -> None:
    flight = InFlight()
    flight.add(sent("d1"))
    flight.add(sent("d2", "w-2"))
    flight.drop_replica("w-1")
    assert (len(flight), flight.num_open("w-1"), flight.num_open("w-2")) == (1, 0, 1)
    assert flight.release("d1") is None


def test_what_was_sent_lately_fades_and_is_void_with_the_replica() -> None:
    flight = InFlight()
    flight.add(Sent("d1", "w-1", "e1", 0.0, 1000, 1000))
    flight.release("d1")
    assert flight.num_recent_tokens("w-1", 0.0) == 1000
    assert flight.num_recent_tokens("w-1", RECENT_S) == pytest.approx(1000 / math.e)
    flight.drop_replica("w-1")
    assert flight.num_recent_tokens("w-1", 0.0) == 0


class InFlightMachine(RuleBasedStateMachine):
    """B91: requests are sent, seen, released at random, replicas die; counts equal those of a plain list."""

    replicas = st.sampled_from(["w-1", "w-2", "w-3"])

    def __init__(self) -> None:
        super().__init__()
        self.now, self.count = 0.0, 0
        self.flight = InFlight()
        self.open: dict[str, Sent] = {}
        self.seen: set[str] = set()

    @rule(replica_id=replicas, num_tokens=st.integers(0, 1000))
    def send(self, replica_id: str, num_tokens: int) -> None:
        self.count += 1
        entry = Sent(f"d{self.count}", replica_id, "e1", self.now, num_tokens, 2 * num_tokens)
        self.flight.add(entry)
        self.open[entry.decision_id] = entry

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.count:
            name = f"d{data.draw(st.integers(1, self.count))}"
            assert self.flight.release(name) == self.open.pop(name, None)

    @rule(replica_id=replicas)
    def report(self, replica_id: str) -> None:
        mine = [name for name, entry in self.open.items() if entry.replica_id == replica_id]
        self.flight.seen(replica_id, mine)
        self.seen.update(mine)

    @rule(replica_id=replicas)
    def die(self, replica_id: str) -> None:
        self.flight.drop_replica(replica_id)
        self.open = {name: entry for name, entry in self.open.items() if entry.replica_id != replica_id}

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.flight) == len(self.open)
        for name in ("w-1", "w-2", "w-3"):
            mine = [entry for entry in self.open.values() if entry.replica_id == name]
            unseen = [e for e in mine if e.decision_id not in self.seen and e.at > self.now - UNSEEN_S]
            assert self.flight.num_open(name) == len(mine)
            tokens = (sum(e.num_new_tokens for e in unseen), sum(e.num_bound_tokens for e in unseen))
            assert self.flight.unseen(name, self.now) == (len(unseen), *tokens)

    def teardown(self) -> None:
        for name in list(self.open):
            self.flight.release(name)
        assert (self.flight._open, self.flight._accounts) == ({}, {})


TestInFlightMachine = InFlightMachine.TestCase
