"""The requests that have been admitted, and how their choices end.

Owns the rule of exactly one ending per choice: every way to end (stop, length, cancel, failure) comes through `end`.
Knows nothing of steps or waiting.
"""

from __future__ import annotations

from headrace_worker.scheduling.blocks import PagePool
from headrace_worker.scheduling.events import Event, Finished, kind_of
from headrace_worker.scheduling.group import Group
from headrace_worker.scheduling.request import Sequence, SequenceState


class RunningSet:
    """Admitted groups by phase: `prefilling` whose prompt is not planned to its end, `decoding` choices after that.

    Of the `statistical` ones some may be `suspended`: they hold nothing until they resume. Their prompt is then
    prefilled again, and choices that had drawn are `catching_up` until what they had drawn is computed too.
    `held` are those whose prompt another replica computes; then they prefill what is left of it.
    `events` collects what there is to tell the caller, from here and from the owners that work on this set;
    `live_handles` are those of waiting and running choices.
    """

    def __init__(self, pool: PagePool) -> None:
        self.prefilling: dict[Group, None] = {}
        self.decoding: dict[Sequence, Group] = {}
        self.catching_up: dict[Sequence, Group] = {}
        self.statistical: dict[Group, None] = {}
        self.suspended: dict[Group, None] = {}
        self.held: dict[Group, None] = {}
        self.num_preempted = 0
        self._num_statistical = 0
        self.num_choices = 0
        self._pool = pool
        self.events: list[Event] = []
        self.live_handles: set[int] = set()
        self._groups: dict[str, list[Group]] = {}
        self._released: list[int] = []

    @property
    def groups(self) -> list[Group]:
        return [group for attempts in self._groups.values() for group in attempts]

    def attempts(self, response_id: str) -> list[Group]:
        """The running attempts of one response: normally one."""
        return list(self._groups.get(response_id, ()))

    def add(self, group: Group) -> None:
        self.prefilling[group] = None
        self._groups.setdefault(group.request.response_id, []).append(group)
        self.num_choices += group.request.n
        if not group.is_hard:
            self._num_statistical += 1
            group.order = self._num_statistical
            self.statistical[group] = None

    def hold(self, group: Group) -> None:
        """Its prompt comes from elsewhere."""
        del self.prefilling[group]
        self.held[group] = None

    def go_on(self, group: Group) -> None:
        """What was to come from elsewhere is there."""
        del self.held[group]
        self.prefilling[group] = None

    def preempt(self, group: Group) -> None:
        """A statistical request gives back all that it holds. What is in flight for it still counts."""
        assert not group.is_hard, f"{group.request.response_id} has a hard promise"
        group.suspend(self._pool)
        self.prefilling.pop(group, None)
        for sequence in group.live:
            self.decoding.pop(sequence, None)
            self.catching_up.pop(sequence, None)
        self.suspended[group] = None
        self.num_choices -= len(group.live)
        self.num_preempted += 1

    def resume(self, group: Group, hits: list[int]) -> None:
        """It begins again with its prompt; nothing of it may be in flight."""
        assert not group.has_rows_in_flight, f"{group.request.response_id} resumes with rows in flight"
        del self.suspended[group]
        group.resume(hits)
        self.prefilling[group] = None
        self.num_choices += len(group.live)

    def fork(self, group: Group) -> None:
        """The prompt is planned to its end; its choices decode from now on."""
        group.fork(self._pool)
        del self.prefilling[group]
        for sequence in group.live:
            (self.catching_up if sequence.output_ids else self.decoding)[sequence] = group

    def caught_up(self, sequence: Sequence) -> None:
        """All that it had drawn is planned: it decodes from here on."""
        self.decoding[sequence] = self.catching_up.pop(sequence)

    def end(self, group: Group, sequence: Sequence, reason: str, now: float, accepted_count: int | None = None) -> None:
        """End one choice. No-op if it has ended already: the first ending is the only one."""
        if sequence.state is SequenceState.FINISHED:
            return
        group.end(sequence, self._pool)
        sequence.finish_reason = reason
        self.decoding.pop(sequence, None)
        self.catching_up.pop(sequence, None)
        self.num_choices -= not group.is_suspended
        self.live_handles.discard(sequence.handle)
        if group.announced:
            self._released.append(sequence.handle)
        if not group.live:
            self._remove(group)
        self.events.append(_finished(group, sequence, reason, now, accepted_count))

    def end_all(self, group: Group, reason: str, now: float, accepted_count: int | None = None) -> None:
        """End every live choice of a response alike."""
        for sequence in list(group.live):
            self.end(group, sequence, reason, now, accepted_count)

    def take_released(self) -> tuple[int, ...]:
        """Handles that ended since the last call, for the next plan to forget."""
        released = tuple(self._released)
        self._released.clear()
        return released

    def _remove(self, group: Group) -> None:
        for phase in (self.prefilling, self.held, self.statistical, self.suspended):
            phase.pop(group, None)
        attempts = self._groups[group.request.response_id]
        attempts.remove(group)
        if not attempts:
            del self._groups[group.request.response_id]


def _finished(group: Group, sequence: Sequence, reason: str, now: float, accepted_count: int | None) -> Finished:
    request = group.request
    num_generated = len(sequence.output_ids)
    first_s = now if sequence.first_token_s is None else sequence.first_token_s
    return Finished(
        handle=sequence.handle,
        response_id=request.response_id,
        attempt=request.attempt,
        choice=sequence.choice,
        kind=kind_of(reason),
        reason=reason,
        num_prompt=group.num_prompt,
        cached_tokens=group.cached_tokens,
        num_generated=num_generated,
        accepted_count=num_generated if accepted_count is None else accepted_count,
        num_late_steps=sequence.num_in_flight,
        queue_s=group.queue_s,
        prefill_s=first_s - group.admitted_s,
        decode_s=now - first_s,
        worst_gap_s=sequence.worst_gap_s,
        promised_pages=group.reservation.promise,
        used_pages=group.reservation.used,
    )
