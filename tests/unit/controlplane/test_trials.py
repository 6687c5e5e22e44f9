"""A revision on trial: its share, its halt, and that only an apply lets it go on; over restarts, losses and repeats."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.v1 import fleet_pb2, snapshot_pb2
from headrace_controlplane import sections
from headrace_controlplane.ledger import Ledger, Surroundings
from headrace_controlplane.referee import Referee
from headrace_controlplane.store import Store
from headrace_controlplane.vault import Vault
from tests.meters import Moved
from tests.unit.controlplane.fakes import SCRIPTED

TRIED = """
models: {m: {source: scripted, revision: r1, canary: {revision: r2, share: 0.25}}}
pools:
  old: {model: m, engine: scripted}
  new: {model: m, engine: scripted, canary: true}
"""
CARD, OTHER = b"c" * 32, b"o" * 32


@pytest.fixture
def ledger(store: Store, tmp_path: Path) -> Iterator[Ledger]:
    made = open_ledger(store, tmp_path)
    made.apply(TRIED, "")
    made.set_card("m", "r1", CARD)
    yield made


def open_ledger(store: Store, root: Path, around: Surroundings | None = None) -> Ledger:
    return Ledger(store, Vault.open(root / "secrets"), around or Surroundings())


def routed(ledger: Ledger) -> snapshot_pb2.RoutedModel:
    assert ledger.current is not None
    (row,) = snapshot_pb2.RouterSection.FromString(ledger.current.sections[sections.ROUTER]).models
    return row


def share(ledger: Ledger) -> float:
    return routed(ledger).canary.share


def row(ledger: Ledger, revision: str, num_ended: int, num_failed: int) -> fleet_pb2.RevisionOutcomes:
    trial = routed(ledger).canary.trial
    return fleet_pb2.RevisionOutcomes(
        model="m", revision=revision, trial=trial, num_ended=num_ended, num_failed=num_failed
    )


def tell(ledger: Ledger, failed: int, ended: int = 40, router: str = "a") -> None:
    Referee(ledger).hear(router, [row(ledger, "r1", 200, 0), row(ledger, "r2", ended, failed)])


def status(ledger: Ledger) -> fleet_pb2.CanaryStatus:
    (found,) = Referee(ledger).statuses()
    return found


def test_it_gets_its_share_when_its_card_is_known_and_reads_tokens_alike(ledger: Ledger) -> None:
    assert (share(ledger), status(ledger).state) == (0.0, "waiting")
    ledger.set_card("m", "r2", CARD)
    assert (share(ledger), list(routed(ledger).revisions), status(ledger).state) == (0.25, ["r1"], "running")


def test_one_that_reads_tokens_otherwise_gets_none(ledger: Ledger) -> None:
    ledger.set_card("m", "r2", OTHER)
    assert (share(ledger), status(ledger).state) == (0.0, "incompatible")


def test_a_worse_one_is_halted_by_itself_and_history_and_show_say_why(ledger: Ledger) -> None:
    ledger.set_card("m", "r2", CARD)
    tell(ledger, failed=0)
    assert share(ledger) == 0.25
    halts = Moved("canary_halts_total", model="m")
    tell(ledger, failed=15, ended=55)
    assert halts() == 1
    assert share(ledger) == 0.0
    newest = ledger.history(1)[0]
    assert (newest.kind, newest.version) == ("halt", ledger.version)
    assert newest.comment.startswith("m r2: failed attempts: 15 of 55, against 0 of 200 beside it")
    found = status(ledger)
    assert (found.state, found.share) == ("halted", 0.25)
    assert found.reason in newest.comment
    assert [(each.num_ended, each.num_failed) for each in found.outcomes] == [(55, 15), (200, 0)]


def halted(ledger: Ledger) -> Ledger:
    ledger.set_card("m", "r2", CARD)
    tell(ledger, failed=40)
    assert share(ledger) == 0.0
    return ledger


def test_what_is_heard_after_the_halt_changes_nothing(ledger: Ledger) -> None:
    version = halted(ledger).version
    tell(ledger, failed=0, ended=100_000)
    assert (share(ledger), ledger.version) == (0.0, version)


def test_an_apply_of_the_same_file_lets_it_go_on_and_counts_anew(ledger: Ledger) -> None:
    first = routed(halted(ledger)).canary.trial
    stale = row(ledger, "r2", 40, 40)
    assert ledger.apply(TRIED, "try again")
    assert (share(ledger), status(ledger).outcomes[0].num_ended) == (0.25, 0)
    assert routed(ledger).canary.trial == ledger.version > first
    Referee(ledger).hear("a", [stale, stale])
    assert (share(ledger), status(ledger).outcomes[0].num_ended) == (0.25, 0)
    assert not ledger.apply(TRIED, "nothing to do")


def test_keys_cards_and_rollbacks_do_not_let_it_go_on(ledger: Ledger) -> None:
    file_version = ledger.version
    halted(ledger)
    ledger.apply(SCRIPTED, "without it")
    ledger.rollback(file_version)
    assert share(ledger) == 0.0
    ledger.set_card("m", "r1", OTHER)
    ledger.set_card("m", "r2", OTHER)
    assert (share(ledger), status(ledger).state) == (0.0, "halted")
    ledger.apply(TRIED, "again")
    assert share(ledger) == 0.25


def test_an_unrelated_apply_keeps_the_counts_of_one_that_runs(ledger: Ledger) -> None:
    ledger.set_card("m", "r2", CARD)
    tell(ledger, failed=0)
    ledger.apply(TRIED + "tenants: {dev: {weight: 2}}\n", "")
    tell(ledger, failed=1, ended=41)
    assert (status(ledger).outcomes[0].num_ended, share(ledger)) == (41, 0.25)


def test_a_restart_forgets_neither_counts_nor_the_halt(ledger: Ledger, store: Store, tmp_path: Path) -> None:
    ledger.set_card("m", "r2", CARD)
    tell(ledger, failed=4, ended=30)
    again = open_ledger(store, tmp_path)
    assert again.version == ledger.version
    assert [each.num_ended for each in status(again).outcomes] == [30, 200]
    tell(again, failed=20, ended=46)
    third = open_ledger(store, tmp_path)
    assert (share(third), status(third).state) == (0.0, "halted")


def test_totals_of_routers_add_up_and_a_new_router_is_another(ledger: Ledger) -> None:
    ledger.set_card("m", "r2", CARD)
    tell(ledger, failed=1, ended=10, router="a")
    tell(ledger, failed=0, ended=5, router="b")
    tell(ledger, failed=1, ended=10, router="a")
    assert (status(ledger).outcomes[0].num_ended, status(ledger).outcomes[0].num_failed) == (15, 1)


def test_a_halted_revision_serves_nothing_after_it_left_the_file(ledger: Ledger) -> None:
    """Its replicas may still be there for a moment: they are not taken for old ones that serve during a rollout."""
    halted(ledger)
    ledger.set_card("m", "r0", CARD)
    ledger.apply(TRIED.replace(", canary: {revision: r2, share: 0.25}", "").replace(", canary: true", ""), "")
    assert list(routed(ledger).revisions) == ["r0", "r1"]


def test_a_promoted_revision_is_what_is_served_beside_the_old_one(ledger: Ledger) -> None:
    ledger.set_card("m", "r2", CARD)
    promoted = TRIED.replace("r1, canary: {revision: r2, share: 0.25}", "r2").replace(", canary: true", "")
    ledger.apply(promoted, "")
    assert list(routed(ledger).revisions) == ["r1", "r2"]
    assert ledger.trials.rows() == {}


def test_a_revision_whose_card_is_known_waits_until_as_many_replicas_of_it_are_ready(
    store: Store, tmp_path: Path
) -> None:
    """Rolling back would otherwise name a revision that nobody serves yet, or one replica for the work of four."""
    serving = {("m", "r1"): 3}
    ledger = open_ledger(store, tmp_path, Surroundings(lambda: serving))
    first = TRIED.replace(", canary: {revision: r2, share: 0.25}", "").replace(", canary: true", "")
    ledger.apply(first, "")
    ledger.set_card("m", "r1", CARD)
    ledger.set_card("m", "r2", OTHER)
    ledger.apply(first.replace("r1", "r2"), "")
    assert ledger.current is not None and ledger.current.served["m"] == ("r1", CARD)
    serving |= {("m", "r2"): 1}
    version = ledger.version
    ledger.note_ready("m", "r2")
    assert (ledger.version, ledger.current.served["m"]) == (version, ("r1", CARD))
    serving |= {("m", "r1"): 2, ("m", "r2"): 2}
    ledger.note_ready("m", "r2")
    assert ledger.current.served["m"] == ("r2", OTHER)
    serving |= {("m", "r2"): 0}
    ledger.set_card("m", "r2", CARD)
    assert ledger.current.served["m"] == ("r2", CARD)


@settings(max_examples=20)
@given(st.data())
def test_lost_late_and_repeated_reports_come_to_the_same_totals(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        store = Store(Path(folder) / "db")
        ledger = open_ledger(store, Path(folder))
        ledger.apply(TRIED, "")
        ledger.set_card("m", "r1", CARD)
        ledger.set_card("m", "r2", CARD)
        reports = [(router, row(ledger, "r2", n, 0)) for router in "ab" for n in (1, 5, 9)]
        heard = data.draw(st.lists(st.sampled_from(reports), min_size=1, max_size=12))
        for router, message in heard:
            Referee(ledger).hear(router, [message])
        most = {router: max((m.num_ended for r, m in heard if r == router), default=0) for router in "ab"}
        assert status(ledger).outcomes[0].num_ended == sum(most.values())
        store.close()
