"""Revisions on trial: which there are, what became of their attempts, and which of them were halted. Decides no halt.

Routers report totals of their own that only grow, so a report that is lost, late or heard twice changes nothing; the
totals are in the store, so a restart of this process or of a router forgets none. Knows no stream and no message.
"""

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from headrace_controlplane.canary import Progress, Rule, Tally, judge
from headrace_controlplane.fleet.file import Fleet
from headrace_controlplane.store import Store, TrialRow

NOTHING = Tally()


@dataclass
class Trial:
    """One revision on trial: the row in the store, totals by router and revision, how far it was judged."""

    row: TrialRow
    heard: dict[str, dict[str, Tally]] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)

    @classmethod
    def of(cls, row: TrialRow) -> "Trial":
        state = json.loads(row.state)
        heard = {
            router: {revision: Tally(*counts) for revision, counts in tallies.items()}
            for router, tallies in state.get("heard", {}).items()
        }
        return cls(row, heard, _progress(state.get("progress")))

    @property
    def state(self) -> str:
        heard = {router: {name: astuple(t) for name, t in tallies.items()} for router, tallies in self.heard.items()}
        return json.dumps({"heard": heard, "progress": astuple(self.progress)})

    def total(self, revision: str) -> Tally:
        """Over all routers."""
        return sum((tallies.get(revision, NOTHING) for tallies in self.heard.values()), NOTHING)

    def beside(self) -> Tally:
        """Of every other revision of the model."""
        names = {name for tallies in self.heard.values() for name in tallies} - {self.row.revision}
        return sum((self.total(name) for name in names), NOTHING)


class Trials:
    """``running`` and halted ones by (model, revision), as the store has them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._trials = {(row.model, row.revision): Trial.of(row) for row in store.trials()}

    def get(self, model: str, revision: str) -> Trial | None:
        return self._trials.get((model, revision))

    def rows(self) -> dict[tuple[str, str], TrialRow]:
        """By (model, revision)."""
        return {key: trial.row for key, trial in self._trials.items()}

    def halted(self, fleet: Fleet) -> list[TrialRow]:
        """Revisions that this fleet has on trial and that are halted: an apply of it lets them go on."""
        wanted = _wanted(fleet, 0)
        return [trial.row for key, trial in self._trials.items() if key in wanted and trial.row.halted]

    def adjust(self, fleet: Fleet, version: int, *, resume: bool) -> None:
        """Begins and ends trials so that they are those of a new version, inside its transaction.

        One that goes on keeps its counts. A halted one begins anew if ``resume``, else it stays halted.
        """
        wanted = _wanted(fleet, version)
        for key, trial in list(self._trials.items()):
            model = fleet.models.get(key[0])
            is_served = model is not None and model.revision == key[1]
            if key not in wanted and (is_served or not trial.row.halted):
                self._store.drop_trial(self._trials.pop(key).row)
        for key, row in wanted.items():
            known = self._trials.get(key)
            goes_on = known is not None and known.row.source == row.source and not (known.row.halted and resume)
            if not goes_on:
                self._store.set_trial(row)
                self._trials[key] = Trial(row)

    def forget_changes(self) -> None:
        """Back to what the store has: a transaction around ``adjust`` failed."""
        self._trials = {(row.model, row.revision): Trial.of(row) for row in self._store.trials()}

    def hear(self, router: str, model: str, trial: int, tallies: Mapping[str, Tally]) -> list[Trial]:
        """Takes totals of a router; the trials of the model that learned something. Another trial's are dropped."""
        learned = []
        for (name, _), each in self._trials.items():
            if name != model or each.row.trial != trial or each.row.halted:
                continue
            known = each.heard.setdefault(router, {})
            newer = {revision: known.get(revision, NOTHING).at_least(tally) for revision, tally in tallies.items()}
            if any(known.get(revision) != tally for revision, tally in newer.items()):
                known.update(newer)
                learned.append(each)
        return learned

    def judge(self, trial: Trial, rule: Rule) -> str:
        """Why it has to be halted now, or nothing; what was learned is in the store when this returns."""
        verdict = judge(trial.total(trial.row.revision), trial.beside(), trial.progress, rule)
        trial.progress = verdict.progress
        trial.row = replace(trial.row, state=trial.state)
        self._store.set_trial(trial.row)
        return verdict.halt

    def halt(self, trial: Trial, reason: str) -> None:
        trial.row = replace(trial.row, halted=reason)
        self._store.set_trial(trial.row)


def _wanted(fleet: Fleet, version: int) -> dict[tuple[str, str], TrialRow]:
    rows = {}
    for name, model in fleet.models.items():
        if model.canary is not None:
            source = model.canary.source or model.source
            rows[name, model.canary.revision] = TrialRow(name, model.canary.revision, source, version)
    return rows


def _progress(stored: Any) -> Progress:
    if stored is None:
        return Progress()
    num_looks, look_at, since = stored
    return Progress(num_looks, look_at, (Tally(*since[0]), Tally(*since[1])))
