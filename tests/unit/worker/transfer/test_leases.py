"""Both sides' state machines, driven by every order of events: pages never leave while anybody reads or writes them."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_worker.transfer.destination import Destination, PullState
from headrace_worker.transfer.pages import Extent
from headrace_worker.transfer.shape import HandOffError
from headrace_worker.transfer.source_lease import LeaseState, SourceLease

LEASE_S, LONGEST_S, PATIENCE_S = 30.0, 10.0, 5.0
WHOLE = Extent(0, 3, 2, 4)
PARTS = [Extent(layer, 1, first, 2) for layer in range(3) for first in (2, 4)]


class LeaseMachine(RuleBasedStateMachine):
    """A source, its own reads, and a reader who begins one-sided reads while it finds the word in force."""

    @initialize(one_sided=st.booleans())
    def start(self, one_sided: bool) -> None:
        self.now = 100.0
        self.one_sided = one_sided
        self.lease = SourceLease(9, self.now, LEASE_S, one_sided=one_sided, longest_s=LONGEST_S)
        self.num_own = 0
        self.remote: list[float] = []
        self.closed_once = False

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.0, 29.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        # An operation ends within its longest; the reader's promise.
        for end_s in sorted(self.remote):
            if end_s <= self.now + seconds:
                self.now, seconds = max(self.now, end_s), seconds - max(0.0, end_s - self.now)
                self.remote.remove(end_s)
        self.now += seconds
        self.lease.tick(self.now)

    @precondition(lambda self: self.one_sided)
    @rule(length=st.floats(0.0, LONGEST_S))
    def other_side_begins_a_read(self, length: float) -> None:
        self.lease.tick(self.now)
        if self.lease.word == 9:
            self.remote.append(self.now + length)

    @rule()
    def own_read_begins(self) -> None:
        self.num_own += self.lease.begin_read(self.now)

    @precondition(lambda self: self.num_own)
    @rule()
    def own_read_ends(self) -> None:
        self.num_own -= 1
        self.lease.end_read(self.now)

    @rule(reason=st.sampled_from(["client", "prefill_lost"]))
    def either_side_aborts(self, reason: str) -> None:
        self.lease.abort(reason, self.now)

    @rule(seconds=st.floats(0.0, LEASE_S))
    def renew(self, seconds: float) -> None:
        closed = self.lease.state is not LeaseState.GRANTED or self.now >= self.lease.ends_s
        before = self.lease.ends_s
        assert self.lease.renew(self.now, seconds) is not closed
        assert self.lease.ends_s >= before

    @precondition(lambda self: not self.remote)
    @rule()
    def other_side_acknowledges(self) -> None:
        self.lease.acknowledge(9, self.now)

    @rule()
    def an_ack_of_another_transfer_changes_nothing(self) -> None:
        state = self.lease.state
        assert not self.lease.acknowledge(8, self.now)
        assert self.lease.state is state

    @invariant()
    def nobody_reads_released_pages(self) -> None:
        if self.lease.released:
            assert not self.remote
            assert not self.num_own

    @invariant()
    def closed_stays_closed(self) -> None:
        self.closed_once |= self.lease.state is not LeaseState.GRANTED
        assert (self.lease.word == 0) is self.closed_once

    @invariant()
    def something_will_release_it(self) -> None:
        waits = self.lease.next_s() is not None
        assert self.lease.released or waits or self.num_own


class DestinationMachine(RuleBasedStateMachine):
    """A destination with operations that end, or do not, in any order."""

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.pull = Destination(WHOLE, self.now, PATIENCE_S)
        self.writing: list[Extent] = []
        self.arrived: set[Extent] = set()

    @rule(part=st.sampled_from(PARTS))
    def begin(self, part: Extent) -> None:
        open_before = self.pull.state is PullState.OPEN
        began = self.pull.begin(part)
        assert began is open_before
        if began:
            self.writing.append(part)

    @precondition(lambda self: self.writing)
    @rule(data=st.data(), arrived=st.booleans())
    def end(self, data: st.DataObject, arrived: bool) -> None:
        part = data.draw(st.sampled_from(self.writing))
        self.writing.remove(part)
        if arrived and self.pull.state is not PullState.ABORTED:
            self.arrived.add(part)
        self.pull.end(part, arrived=arrived)

    @rule(reason=st.sampled_from(["client", "prefill_lost", "kv_expired"]))
    def abort(self, reason: str) -> None:
        self.pull.abort(reason)

    @precondition(lambda self: self.pull.state is PullState.ABORTED)
    @rule()
    def fence(self) -> None:
        self.pull.fence()
        self.writing.clear()

    @rule(seconds=st.sampled_from([0.1, 4.0, 6.0]))
    def silence(self, seconds: float) -> None:
        self.now += seconds
        self.pull.tick(self.now)

    @rule()
    def hear(self) -> None:
        self.pull.hear(self.now)

    @invariant()
    def released_means_that_nobody_writes(self) -> None:
        assert self.pull.released is (self.pull.state is not PullState.OPEN and not self.writing)

    @invariant()
    def complete_means_that_everything_arrived(self) -> None:
        whole = self.arrived == set(PARTS)
        assert (self.pull.state is PullState.COMPLETE) is (whole and self.pull.state is not PullState.ABORTED)
        assert self.pull.num_missing == 2 * (len(PARTS) - len(self.arrived))


TestLease = LeaseMachine.TestCase
TestLease.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestDestination = DestinationMachine.TestCase
TestDestination.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_aborted_one_sided_lease_lets_pages_go_at_its_end_and_the_longest_operation() -> None:
    lease = SourceLease(1, 0.0, LEASE_S, one_sided=True, longest_s=LONGEST_S)
    lease.abort("client", 5.0)
    lease.tick(LEASE_S + LONGEST_S - 0.001)
    assert not lease.released
    lease.tick(LEASE_S + LONGEST_S)
    assert lease.released


def test_an_acknowledged_lease_lets_pages_go_at_once() -> None:
    lease = SourceLease(1, 0.0, LEASE_S, one_sided=True, longest_s=LONGEST_S)
    assert lease.acknowledge(1, 3.0)
    assert lease.released


def test_a_queued_pull_renews_and_a_late_one_finds_the_lease_over() -> None:
    lease = SourceLease(1, 0.0, LEASE_S, one_sided=False, longest_s=LONGEST_S)
    assert lease.renew(20.0, LEASE_S)
    assert lease.begin_read(31.0)
    lease.end_read(31.0)
    assert not lease.begin_read(51.0)
    assert (lease.reason, lease.renew(51.0, LEASE_S)) == ("kv_expired", False)


def test_a_late_completion_is_counted_and_dropped() -> None:
    pull = Destination(WHOLE, 0.0, PATIENCE_S)
    assert pull.begin(PARTS[0])
    pull.abort("client")
    assert not pull.released
    pull.end(PARTS[0], arrived=True)
    assert (pull.released, pull.num_late, pull.num_missing) == (True, 1, 12)
    assert not pull.begin(PARTS[1])
    assert pull.num_late == 2


@pytest.mark.parametrize("extent", [Extent(0, 4, 2, 4), Extent(0, 1, 1, 1), Extent(2, 1, 5, 2), Extent(0, 0, 2, 1)])
def test_a_group_that_nobody_asked_for_is_an_error(extent: Extent) -> None:
    with pytest.raises(HandOffError):
        Destination(WHOLE, 0.0, PATIENCE_S).begin(extent)
