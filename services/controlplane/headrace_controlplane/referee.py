"""Hears from routers what became of the revisions on trial, halts those that do worse, and tells how each stands.

Decides nothing itself: canary.py does. Keeps nothing: trials.py does.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import astuple

from headrace.v1 import fleet_pb2
from headrace_controlplane.canary import Rule, Tally
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.trials import Trial
from headrace_kit import telemetry

log = logging.getLogger(__name__)
_halts = telemetry.counter("canary_halts_total", "Revisions on trial that were halted for doing worse", ["model"])


class Referee:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def hear(self, router: str, rows: Iterable[fleet_pb2.RevisionOutcomes]) -> None:
        """Totals of one router."""
        told: dict[tuple[str, int], dict[str, Tally]] = defaultdict(dict)
        for row in rows:
            told[row.model, row.trial][row.revision] = _tally(row)
        for (model, trial), tallies in told.items():
            for each in self._ledger.trials.hear(router, model, trial, tallies):
                self._judge(each)

    def statuses(self) -> list[fleet_pb2.CanaryStatus]:
        """Of every revision that the newest version has on trial."""
        current = self._ledger.current
        found = []
        for name, model in current.fleet.models.items() if current else ():
            trial = self._ledger.trials.get(name, model.canary.revision) if model.canary else None
            if model.canary is not None and trial is not None:
                found.append(self._status(name, model.canary.share, trial))
        return found

    def _judge(self, trial: Trial) -> None:
        assert self._ledger.current is not None, "a trial belongs to a version"
        rollout = self._ledger.current.fleet.rollout
        reason = self._ledger.trials.judge(trial, Rule(rollout.min_samples, rollout.significance, rollout.margin))
        if reason:
            _halts.labels(trial.row.model).inc()
            facts = {"model": trial.row.model, "revision": trial.row.revision, "reason": reason}
            log.error("canary_halted", extra=facts)
            self._ledger.halt(trial, reason)

    def _status(self, name: str, share: float, trial: Trial) -> fleet_pb2.CanaryStatus:
        standing, row = self._ledger.standing(name), trial.row
        tallies = {row.revision: trial.total(row.revision), "": trial.beside()}
        return fleet_pb2.CanaryStatus(
            model=name,
            revision=row.revision,
            share=share,
            state=standing.state,
            reason=standing.reason,
            trial=row.trial,
            outcomes=[_outcomes(name, revision, row.trial, tally) for revision, tally in tallies.items()],
        )


def _tally(row: fleet_pb2.RevisionOutcomes) -> Tally:
    return Tally(
        *(row.num_ended, row.num_failed, row.num_ttft_met, row.num_ttft_missed),
        *(row.num_inter_token_met, row.num_inter_token_missed),
    )


def _outcomes(model: str, revision: str, trial: int, tally: Tally) -> fleet_pb2.RevisionOutcomes:
    ended, failed, ttft_met, ttft_missed, inter_token_met, inter_token_missed = astuple(tally)
    return fleet_pb2.RevisionOutcomes(
        model=model,
        revision=revision,
        trial=trial,
        num_ended=ended,
        num_failed=failed,
        num_ttft_met=ttft_met,
        num_ttft_missed=ttft_missed,
        num_inter_token_met=inter_token_met,
        num_inter_token_missed=inter_token_missed,
    )
