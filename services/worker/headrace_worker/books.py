"""What this process was given, generated and handed over, and whether it adds up. Counts only; keeps no attempt."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from headrace.v1 import fleet_pb2, response_pb2, worker_pb2
from headrace_worker.attempts import Attempt, Attempts
from headrace_worker.scheduling.load import Load

_KEPT_EPOCHS = 64


class Books:
    """Counters of one process. An attempt is told of once for each thing that becomes of it."""

    def __init__(self) -> None:
        self._num_submitted = self._num_refused = self._num_acknowledged = self._num_dropped = 0
        self._num_reported = self._num_in_finals = self._num_imbalances = 0
        # Tokens of acknowledged attempts by the epoch that they were decided for.
        self._handed_over: OrderedDict[str, int] = OrderedDict()
        # Of the same attempts, tokens of finals that came after the settlement: their client had left early.
        self._too_late = Counter[str]()

    def submitted(self) -> None:
        self._num_submitted += 1

    def refused(self) -> None:
        self._num_refused += 1

    def reported(self, num_tokens: int) -> None:
        """Tokens that the engine told of."""
        self._num_reported += num_tokens

    def ended(self, final: worker_pb2.Final) -> None:
        """A choice: its late tokens were generated and never told of."""
        self._num_reported += final.num_late_tokens
        self._num_in_finals += final.num_generated_tokens

    def acknowledged(self, attempt: Attempt, num_settled: int | None = None) -> None:
        """Its finals arrived: they are the gateway's to settle, or only `num_settled` tokens of them were in time."""
        self._num_acknowledged += 1
        epoch = attempt.submit.replica_epoch
        generated = sum(final.num_generated_tokens for final in attempt.finals)
        settled = generated if num_settled is None else min(generated, num_settled)
        self._handed_over[epoch] = self._handed_over.get(epoch, 0) + settled
        self._too_late[epoch] += generated - settled
        if len(self._handed_over) > _KEPT_EPOCHS:
            oldest, _ = self._handed_over.popitem(last=False)
            del self._too_late[oldest]

    def dropped(self) -> None:
        """An orphan that nobody came for."""
        self._num_dropped += 1

    def imbalanced(self) -> None:
        self._num_imbalances += 1

    def report(
        self, replica: response_pb2.ReplicaRef, load: Load | None, attempts: Attempts
    ) -> fleet_pb2.GetBooksResponse:
        """`load` as the engine told it last; None before it did."""
        kept = list(attempts)
        running = sum(choice.num_generated for one in kept for choice in one.choices if not choice.ended)
        over = self._num_refused + self._num_acknowledged + self._num_dropped
        rows = [
            _row("submitted = refused + acknowledged + dropped + kept", self._num_submitted, over + len(kept)),
            _row("generated = in finals + running", self._num_reported, self._num_in_finals + running),
            _row("imbalances that the engine found when idle = 0", self._num_imbalances, 0),
        ]
        if load is not None:
            pages = load.num_free_pages + load.num_cached_pages + load.num_held_pages + load.num_quarantined_pages
            rows.append(_row("pages = free + cached + held + quarantined", load.num_total_pages, pages))
        kept_tokens = Counter[str]()
        for one in kept:
            kept_tokens[one.submit.replica_epoch] += _generated(one)
        tokens = [
            fleet_pb2.EpochTokens(
                replica=response_pb2.ReplicaRef(id=replica.id, epoch=epoch),
                num_generated_tokens=self._handed_over.get(epoch, 0),
                num_kept_tokens=kept_tokens[epoch],
                num_discarded_tokens=self._too_late[epoch],
            )
            for epoch in {replica.epoch, *self._handed_over, *kept_tokens}
        ]
        component = f"worker {replica.id}@{replica.epoch}"
        return fleet_pb2.GetBooksResponse(
            component=component, rows=rows, tokens=tokens, num_attempts=sum(not one.ended for one in kept)
        )


def hand_off_rows(begun: Sequence[int], wanted: Sequence[int]) -> list[fleet_pb2.AuditRow]:
    """Of hand-offs from here: begun, acknowledged, aborted, under way; and to here: begun, received, failed, under way.

    None where there were none.
    """
    rows = []
    if begun[0]:
        rows.append(_row("hand-offs from here = acknowledged + aborted + under way", begun[0], sum(begun[1:])))
    if wanted[0]:
        rows.append(_row("hand-offs to here = received + failed + under way", wanted[0], sum(wanted[1:])))
    return rows


def _generated(attempt: Attempt) -> int:
    """So far, over all choices."""
    in_finals = sum(final.num_generated_tokens for final in attempt.finals)
    return in_finals + sum(choice.num_generated for choice in attempt.choices if not choice.ended)


def _row(equation: str, left: int, right: int) -> fleet_pb2.AuditRow:
    return fleet_pb2.AuditRow(equation=equation, left=left, right=right, balanced=left == right)
