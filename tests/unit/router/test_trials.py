"""Who falls to a revision on trial, what is counted of it, and what happens when it cannot serve."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import fleet_pb2, snapshot_pb2
from headrace_router.breaker import NUM_FAULTS
from headrace_router.deadlines import Budget
from headrace_router.trials import Arm, Canary, Count, Ending, Outcomes, Revisions
from tests.unit.router.fakes import Fleet, full, row, section
from tests.unit.router.test_servicer import Router

BUDGET = Budget(ttft_s=0.7, max_queue_s=5.0, inter_token_s=0.05)
ARM = Arm("m", "2", 7)


def tried(share: float) -> Revisions:
    return Revisions(frozenset({"1"}), Canary("2", share, 7))


def test_the_share_is_the_share() -> None:
    num = sum(bool(tried(0.25).on_trial("m", "1", f"session-{i}")) for i in range(4000))
    assert 900 <= num <= 1100


@given(st.text(max_size=20), st.floats(0, 1), st.floats(0, 1))
def test_a_session_stays_and_a_larger_share_keeps_those_it_had(session: str, one: float, other: float) -> None:
    small, large = sorted([one, other])
    assert tried(small).on_trial("m", "1", session) == tried(small).on_trial("m", "1", session)
    assert not tried(small).on_trial("m", "1", session) or tried(large).on_trial("m", "1", session)


def test_another_revision_tries_other_sessions() -> None:
    other = Revisions(frozenset({"1"}), Canary("3", 0.5, 8))
    sessions = [f"s{i}" for i in range(200)]
    assert [bool(tried(0.5).on_trial("m", "1", s)) for s in sessions] != [
        bool(other.on_trial("m", "1", s)) for s in sessions
    ]


def test_without_a_share_or_for_another_tokenizer_nobody_falls_to_it() -> None:
    assert tried(0.0).on_trial("m", "1", "s") == ""
    assert tried(1.0).on_trial("m", "another", "s") == ""
    assert tried(1.0).on_trial("m", "", "s") == "2"


def test_alike_revisions_serve_for_one_another_and_others_do_not() -> None:
    alike = Revisions(frozenset({"1", "0"}))
    assert alike.allowed("1") == alike.allowed("") == {"0", "1"}
    assert alike.allowed("9") == {"9"}
    assert Revisions(frozenset()).allowed("") == frozenset()


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (Ending("completed", ttft_s=0.7, inter_token_s=0.05), Count(1, 0, 1, 0, 1, 0)),
        (Ending("incomplete", ttft_s=0.71, inter_token_s=0.051), Count(1, 0, 0, 1, 0, 1)),
        (Ending("failed", "engine_error"), Count(1, 1)),
        (Ending("failed", "no_valid_token", ttft_s=0.1), Count(1, 1, 1)),
        (Ending("lost", "worker_lost"), Count(1, 1)),
        (Ending("failed", "policy_lost"), Count()),
        (Ending("failed", "replica_draining"), Count()),
        (Ending("refused", "busy"), Count()),
        (Ending("cancelled", "client", ttft_s=2.0), Count(0, 0, 0, 1)),
    ],
)
def test_what_an_ending_counts_as(ending: Ending, expected: Count) -> None:
    count = Count()
    count.add(ending, BUDGET)
    assert count == expected


def test_an_attempt_counts_once_and_only_if_it_was_sent() -> None:
    outcomes = Outcomes()
    outcomes.sent("d", ARM, BUDGET)
    for decision_id in ("d", "d", "nobody's"):
        outcomes.ended(decision_id, Ending("completed"))
    assert outcomes.rows() == [(ARM, (1, 0, 0, 0, 0, 0))]


def test_a_new_trial_replaces_the_counts_of_the_one_before() -> None:
    outcomes = Outcomes()
    for decision_id, arm in (("a", ARM), ("b", Arm("m", "1", 7)), ("c", Arm("other", "1", 3))):
        outcomes.sent(decision_id, arm, BUDGET)
        outcomes.ended(decision_id, Ending("completed"))
    outcomes.sent("d", Arm("m", "2", 9), BUDGET)
    outcomes.ended("d", Ending("lost"))
    assert {arm for arm, _ in outcomes.rows()} == {Arm("other", "1", 3), Arm("m", "2", 9)}


class OnTrial:
    """A router with a replica of revision 1 and one of revision 2, which gets every request that it can serve."""

    def __init__(self, share: float = 1.0) -> None:
        self.fleet = Fleet(time.monotonic)
        rules = section()
        canary = snapshot_pb2.Canary(revision="2", share=share, trial=7)
        rules.models.append(snapshot_pb2.RoutedModel(model="m", revisions=["1"], canary=canary))
        self.fleet.rules.apply(rules)
        self.fleet.table.apply(full(row("w-1"), row("w-2", revision="2")))
        for name in ("w-1", "w-2"):
            self.fleet.say_ready(name)
        self.router = Router(self.fleet)

    async def picked(self, **facts: Any) -> str:
        return (await self.router.route(revision="1", **facts)).replica.id

    @property
    def counts(self) -> dict[str, fleet_pb2.RevisionOutcomes]:
        return {each.revision: each for each in self.router.demand.outcome_rows()}


async def test_a_request_that_falls_to_it_goes_there_and_its_ending_counts() -> None:
    scene = OnTrial()
    decision = await scene.router.route(revision="1")
    assert decision.replica.id == "w-2"
    await scene.router.report(decision.decision_id, "failed", "engine_error")
    assert (scene.counts["2"].num_ended, scene.counts["2"].num_failed, scene.counts["2"].trial) == (1, 1, 7)


async def test_one_that_does_not_goes_to_the_others_and_counts_beside_it() -> None:
    scene = OnTrial(share=0.0)
    decision = await scene.router.route(revision="1")
    assert decision.replica.id == "w-1"
    await scene.router.report(decision.decision_id)
    assert (scene.counts["1"].num_ended, scene.counts["1"].num_failed) == (1, 0)


async def test_when_it_cannot_serve_the_others_do_at_once() -> None:
    scene = OnTrial()
    assert await scene.picked(excluded=["w-2"]) == "w-1"
    replica = scene.fleet.table.get("w-2")
    assert replica is not None
    scene.fleet.table.set_connected(replica, False)
    assert await scene.picked() == "w-1"
    assert scene.counts == {}


async def test_the_others_do_not_fall_to_it_when_they_cannot_serve() -> None:
    scene = OnTrial(share=0.0)
    replica = scene.fleet.table.get("w-1")
    assert replica is not None
    for _ in range(NUM_FAULTS):
        replica.breaker.on_outcome("fault", 0.0, 1.0)
    replica.breaker.open_until = float("inf")
    with pytest.raises(Exception, match="every replica that fits is failing"):
        await scene.picked()


async def test_what_its_open_breaker_turns_away_counts_as_failed() -> None:
    """Else a revision that always fails would be tried so seldom that nobody could judge it."""
    scene = OnTrial()
    for _ in range(NUM_FAULTS):
        decision = await scene.router.route(revision="1")
        await scene.router.report(decision.decision_id, "failed", "engine_error")
    assert [await scene.picked() for _ in range(3)] == ["w-1"] * 3
    assert (scene.counts["2"].num_ended, scene.counts["2"].num_failed) == (8, 8)


async def test_an_attempt_whose_replica_is_no_more_counts_all_the_same() -> None:
    scene = OnTrial()
    decision = await scene.router.route(revision="1")
    scene.fleet.table.apply(full(row("w-1"), revision=9))
    await scene.router.report(decision.decision_id, "lost", "worker_lost")
    assert scene.counts["2"].num_failed == 1


async def test_a_second_attempt_of_a_response_falls_to_the_same_side() -> None:
    scene = OnTrial(share=0.5)
    for i in range(20):
        picks = {await scene.picked(response_id=f"r{i}", attempt=n) for n in (1, 2)}
        assert len(picks) == 1
