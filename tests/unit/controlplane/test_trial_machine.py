"""Applies, rollbacks, keys, restarts and reports in any order, against a list of what is on trial and halted."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.v1 import fleet_pb2, snapshot_pb2
from headrace_controlplane import sections
from headrace_controlplane.keys import StoredKey
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.referee import Referee
from headrace_controlplane.store import Store
from headrace_controlplane.vault import Vault

CARD = b"c" * 32
TRIED = """
models: {m: {source: scripted, revision: r1, canary: {revision: CANARY, share: 0.25}}}
pools:
  old: {model: m, engine: scripted}
  new: {model: m, engine: scripted, canary: true}
"""
PLAIN = """
models: {m: {source: scripted, revision: r1}}
pools: {old: {model: m, engine: scripted}}
"""
FILES = (PLAIN, TRIED.replace("CANARY", "c1"), TRIED.replace("CANARY", "c2"))


class TrialMachine(RuleBasedStateMachine):
    """The model: which file is in force, and which revisions were halted and not applied since."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.root = Path(self.directory.name)
        self.store = Store(self.root / "db")
        self.ledger = Ledger(self.store, Vault.open(self.root / "secrets"))
        self.halted: set[str] = set()
        self.files: dict[int, str] = {}
        self.num_ended = 0
        self.apply(PLAIN)
        for revision in ("r1", "c1", "c2"):
            self.ledger.set_card("m", revision, CARD)
            self.note()
        self.apply(FILES[1])

    def teardown(self) -> None:
        self.store.close()
        self.directory.cleanup()

    def note(self) -> None:
        self.files.setdefault(self.ledger.version, self.file)

    @property
    def canary(self) -> str:
        return next((name for name in ("c1", "c2") if name in self.file), "")

    def row(self) -> snapshot_pb2.RoutedModel:
        assert self.ledger.current is not None
        (row,) = snapshot_pb2.RouterSection.FromString(self.ledger.current.sections[sections.ROUTER]).models
        return row

    @rule(file=st.sampled_from(FILES))
    def apply(self, file: str) -> None:
        self.file = file
        self.ledger.apply(file, "")
        self.halted.discard(self.canary)
        self.note()

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.files)))
        self.file = self.files[version]
        self.ledger.rollback(version)
        self.note()

    @rule()
    def create_key(self) -> None:
        self.ledger.create_key(StoredKey(key_id="", hash=b"", tenant="dev"))
        self.note()

    @rule()
    def restart(self) -> None:
        before = self.ledger.current
        self.store.close()
        self.store = Store(self.root / "db")
        self.ledger = Ledger(self.store, self.ledger.vault)
        assert self.ledger.current == before

    @precondition(lambda self: self.canary)
    @rule(is_bad=st.booleans(), is_stale=st.booleans())
    def report(self, is_bad: bool, is_stale: bool) -> None:
        """A trial of the past is nobody's any more."""
        self.num_ended += 200
        trial = self.row().canary.trial - (1 if is_stale else 0)
        rows = [
            fleet_pb2.RevisionOutcomes(
                model="m", revision=name, trial=trial, num_ended=self.num_ended, num_failed=num_failed
            )
            for name, num_failed in ((self.canary, self.num_ended if is_bad else 0), ("r1", 0))
        ]
        Referee(self.ledger).hear(f"router-{self.num_ended}", rows)
        if is_bad and not is_stale:
            self.halted.add(self.canary)
        self.note()

    @invariant()
    def it_has_its_share_unless_it_was_halted(self) -> None:
        row = self.row()
        assert row.canary.revision == self.canary
        assert row.canary.share == (0.25 if self.canary and self.canary not in self.halted else 0.0)

    @invariant()
    def nobody_on_trial_or_halted_serves_beside_the_model(self) -> None:
        assert set(self.row().revisions) == {"r1", "c1", "c2"} - self.halted - {self.canary}


TestTrialMachine = TrialMachine.TestCase
# Every step commits to a real file, which costs milliseconds.
TestTrialMachine.settings = settings(max_examples=15, stateful_step_count=20)
