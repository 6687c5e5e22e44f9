"""Tokens of the journal by process of a replica, read on from where the last reading ended. Knows no equation."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.v1 import policy_pb2
from headrace_controlplane.audit import Process

# A correction follows what it corrects within a lease or two; older responses are not looked for again.
_KEPT_RESPONSES = 100_000
Counts = Mapping[int, tuple[Process, int]]
"""Process and its generated tokens by number of the attempt."""


@dataclass
class _Response:
    """What its settlement names, and what was closed beside it; an attempt of both counts once."""

    named: Counts = field(default_factory=dict)
    beside: dict[int, tuple[Process, int]] = field(default_factory=dict)

    @property
    def counted(self) -> Iterable[tuple[Process, int]]:
        return {**self.beside, **self.named}.values()


class Tallies:
    """``add`` takes rows in any order and any number of times; the last row of a response counts."""

    def __init__(self) -> None:
        self._of_response: dict[str, _Response] = {}
        self._sums: defaultdict[Process, int] = defaultdict(int)

    def add(self, rows: Iterable[policy_pb2.UsageRow], live: set[Process], *, forget: bool = True) -> None:
        """Counts what ``live`` processes generated, and may forget all others."""
        for process in self._sums.keys() - live if forget else ():
            del self._sums[process]
        for row in rows:
            settled = row.settlement
            counts = {
                one.attempt or place: ((one.replica.id, one.replica.epoch), one.num_generated_tokens)
                for place, one in enumerate(settled.attempts, start=1)
            }
            self._take(settled, {number: count for number, count in counts.items() if count[0] in live}, live)

    def _take(self, settled: policy_pb2.SettleRequest, kept: Counts, live: set[Process]) -> None:
        name = settled.attempt_of or settled.reservation.response_id
        response = self._of_response.pop(name, None) or _Response()
        for process, count in response.counted:
            if process in self._sums:
                self._sums[process] -= count
        if settled.attempt_of:
            response.beside.update(kept)
        else:
            response.named = kept
        for process, count in response.counted:
            if process in live:
                self._sums[process] += count
        if response.named or response.beside:
            self._of_response[name] = response
            if len(self._of_response) > _KEPT_RESPONSES:
                self._of_response.pop(next(iter(self._of_response)))

    def of(self, process: Process) -> int:
        return self._sums.get(process, 0)
