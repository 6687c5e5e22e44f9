"""The attempts that this replica was given and has not been told to forget, by identity and by engine handle.

An attempt is remembered from its Submit until it is refused, or until its finals were acknowledged. Knows neither who
reads them nor the engine.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.v1 import response_pb2, worker_pb2
from headrace_worker.execution.step_log import SequenceNotes
from headrace_worker.mailbox import Mailbox


@dataclass(slots=True)
class Tally:
    """What has been reported of one choice, so that its end can be told even if the engine cannot."""

    num_generated: int = 0
    ended: bool = False


@dataclass(slots=True, eq=False)
class Attempt:
    """One Submit. `handle` is the engine's name of choice 0; the Attach has its own, in the Submit.

    `mailbox` is None once its Attach has ended: from then on its finals are orphans.
    """

    submit: worker_pb2.Submit
    handle: int
    gateway_id: str
    mailbox: Mailbox | None
    accepted: worker_pb2.Accepted | None = None
    finals: list[worker_pb2.Final] = field(default_factory=list)
    choices: list[Tally] = field(default_factory=list)
    # For its spans: Unix times, what it met, and what its choices saw.
    submitted_ns: int = 0
    ended_ns: int = 0
    num_waiting_before: int = 0
    pool_pressure: float = 0.0
    binding: tuple[str, float] | None = None
    notes: dict[int, SequenceNotes] = field(default_factory=dict)
    # What the prompt took at the replica that the Submit names for it, once its pages were here.
    prefill_device_us: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.submit.response_id, self.submit.attempt

    @property
    def ended(self) -> bool:
        """Every choice has its final."""
        return len(self.finals) == self.submit.n

    def wire_handle(self, engine_handle: int) -> int:
        """The Attach's name of a choice that the engine calls `engine_handle`."""
        return self.submit.handle + engine_handle - self.handle

    def wire_handles(self) -> list[tuple[Mailbox, int]]:
        """The Attach's names of all choices; none once the Attach has ended."""
        first = self.submit.handle
        return [] if self.mailbox is None else [(self.mailbox, first + choice) for choice in range(self.submit.n)]

    def orphans(self, replica_id: str) -> Iterator[worker_pb2.Orphan]:
        """Its finals, with all that another gateway needs to settle them."""
        for final in self.finals:
            yield worker_pb2.Orphan(
                final=final,
                gateway_id=self.gateway_id,
                tenant_digest=self.submit.tenant_digest,
                decision_id=self.submit.decision_id,
                snapshot_version=self.submit.snapshot_version,
                reservation=self.submit.reservation,
                n=self.submit.n,
                replica=response_pb2.ReplicaRef(id=replica_id, epoch=self.submit.replica_epoch),
            )


class Attempts:
    """All of them. Engine handles are handed out here, each once in the life of the process."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, int], Attempt] = {}
        self._by_handle: dict[int, Attempt] = {}
        self._starts: list[int] = []
        self._wire_handles: set[tuple[Mailbox, int]] = set()
        self._next_handle = 1

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(list(self._by_key.values()))

    @property
    def num_live(self) -> int:
        """Attempts with a choice that has not ended."""
        return sum(1 for attempt in self._by_key.values() if not attempt.ended)

    def reserve_handles(self, num_choices: int) -> int:
        handle = self._next_handle
        self._next_handle += num_choices
        return handle

    def are_free(self, mailbox: Mailbox, handles: range) -> bool:
        """Whether no attempt of this Attach has one of these handles of the wire."""
        return not any((mailbox, handle) in self._wire_handles for handle in handles)

    def add(self, attempt: Attempt) -> None:
        assert attempt.key not in self._by_key, f"attempt {attempt.key} is here already"
        self._by_key[attempt.key] = attempt
        self._by_handle[attempt.handle] = attempt
        bisect.insort(self._starts, attempt.handle)
        self._wire_handles.update(attempt.wire_handles())
        attempt.choices = [Tally() for _ in range(attempt.submit.n)]

    def find(self, response_id: str, attempt: int) -> Attempt | None:
        return self._by_key.get((response_id, attempt))

    def of_response(self, response_id: str, attempt: int) -> list[Attempt]:
        """The attempt of this number, or with 0 every attempt of the response."""
        if attempt:
            found = self.find(response_id, attempt)
            return [found] if found else []
        return [each for key, each in self._by_key.items() if key[0] == response_id]

    def of_handle(self, engine_handle: int) -> Attempt | None:
        """The attempt that has a choice of this engine handle; None if it has been forgotten."""
        index = bisect.bisect_right(self._starts, engine_handle) - 1
        if index < 0:
            return None
        attempt = self._by_handle[self._starts[index]]
        return attempt if engine_handle < attempt.handle + attempt.submit.n else None

    def detach(self, attempt: Attempt) -> None:
        """Its Attach has ended."""
        self._wire_handles.difference_update(attempt.wire_handles())
        attempt.mailbox = None

    def forget(self, attempt: Attempt) -> None:
        self._wire_handles.difference_update(attempt.wire_handles())
        del self._by_key[attempt.key]
        del self._by_handle[attempt.handle]
        self._starts.pop(bisect.bisect_left(self._starts, attempt.handle))
