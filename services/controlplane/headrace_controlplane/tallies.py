"""Tokens of the journal by process of a replica, read on from where the last reading ended. Knows no equation."""

from collections import defaultdict
from collections.abc import Iterable

from headrace.v1 import policy_pb2
from headrace_controlplane.audit import Process

# A correction follows what it corrects within a lease or two; older responses are not looked for again.
_KEPT_RESPONSES = 100_000


class Tallies:
    """``add`` takes rows in any order and any number of times; the last row of a response counts."""

    def __init__(self) -> None:
        self._of_response: dict[str, dict[Process, int]] = {}
        self._sums: defaultdict[Process, int] = defaultdict(int)

    def add(self, rows: Iterable[policy_pb2.UsageRow], live: set[Process], *, forget: bool = True) -> None:
        """Counts what ``live`` processes generated, and may forget all others."""
        for process in self._sums.keys() - live if forget else ():
            del self._sums[process]
        for row in rows:
            name = row.settlement.reservation.response_id
            for process, count in self._of_response.pop(name, {}).items():
                if process in self._sums:
                    self._sums[process] -= count
            counts: defaultdict[Process, int] = defaultdict(int)
            for attempt in row.settlement.attempts:
                counts[attempt.replica.id, attempt.replica.epoch] += attempt.num_generated_tokens
            kept = {process: count for process, count in counts.items() if process in live}
            for process, count in kept.items():
                self._sums[process] += count
            if kept:
                self._of_response[name] = kept
                if len(self._of_response) > _KEPT_RESPONSES:
                    self._of_response.pop(next(iter(self._of_response)))

    def of(self, process: Process) -> int:
        return self._sums.get(process, 0)
