"""Where the time of steps went, and what a sequence saw of them. Pure: the clock is an argument. Knows plans, no wire.

What a sequence saw is read off at its end from what all steps left behind, so that a step costs the same whatever runs.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace_worker.scheduling.plan import Plan

_KEPT_STEPS = 1 << 16
_MOST_READ = 1024


class StepSplit(NamedTuple):
    """Seconds of one step: making the plan, the forward pass, drawing tokens, and the device waiting for its host.

    `num_rows` of `max_rows` places were used, by `num_tokens` tokens.
    """

    plan_s: float
    forward_s: float
    sample_s: float
    host_gap_s: float
    num_rows: int
    num_tokens: int


class SequenceNotes(NamedTuple):
    """What one choice saw: chunks of its prompt, rows of the steps that it decoded in, seconds of their collectives."""

    num_chunks: int = 0
    occupancy_p50: int = 0
    occupancy_p95: int = 0
    collective_s: float = 0.0


class _Life(NamedTuple):
    """Where a sequence's steps begin; `first` is that of its first decode, -1 before."""

    num_chunks: int
    first: int
    collective_s: float


class StepLog:
    """Fed once per step with `ended`."""

    def __init__(self) -> None:
        self._rows = [0] * _KEPT_STEPS
        self._num_steps = 0
        self._collective_s = 0.0
        self._lives: dict[int, _Life] = {}
        self._planning_s = 0.0
        self._idle_since_s: float | None = None

    def planned(self, took_s: float) -> None:
        self._planning_s += took_s

    def rested(self) -> None:
        """Nothing is left to do: what follows is not a wait of the device for its host."""
        self._idle_since_s = None

    def ended(self, plan: Plan, span_s: tuple[float, float], sample_s: float, collective_s: float) -> StepSplit:
        """A step that was alone on the device from `span_s[0]` to `span_s[1]`."""
        began_s, ended_s = span_s
        since_s, self._idle_since_s = self._idle_since_s, ended_s
        plan_s, self._planning_s = self._planning_s, 0.0
        gap_s = 0.0 if since_s is None else max(0.0, began_s - since_s - plan_s)
        self._rows[self._num_steps % _KEPT_STEPS] = len(plan.rows)
        for row in plan.rows:
            self._note(row.handle, is_chunk=len(row.token_ids) > 1 or not row.samples)
        self._collective_s += collective_s
        self._num_steps += 1
        num_tokens = sum(len(row.token_ids) for row in plan.rows)
        forward_s = max(0.0, ended_s - began_s - sample_s)
        return StepSplit(plan_s, forward_s, sample_s, gap_s, len(plan.rows), num_tokens)

    def take(self, handle: int) -> SequenceNotes:
        """What a sequence saw, once, when it has ended."""
        life = self._lives.pop(handle, None)
        if life is None:
            return SequenceNotes()
        collective_s = self._collective_s - life.collective_s
        if life.first < 0:
            return SequenceNotes(life.num_chunks, collective_s=collective_s)
        first = max(life.first, self._num_steps - _KEPT_STEPS)
        stride = max(1, (self._num_steps - first) // _MOST_READ)
        seen = sorted(self._rows[step % _KEPT_STEPS] for step in range(first, self._num_steps, stride))
        if not seen:
            return SequenceNotes(life.num_chunks, collective_s=collective_s)
        p50, p95 = (seen[min(len(seen) - 1, int(share * len(seen)))] for share in (0.5, 0.95))
        return SequenceNotes(life.num_chunks, p50, p95, collective_s)

    def _note(self, handle: int, *, is_chunk: bool) -> None:
        life = self._lives.get(handle)
        if life is not None and life.first >= 0:
            return
        if life is None:
            life = _Life(0, -1, self._collective_s)
        if is_chunk:
            self._lives[handle] = life._replace(num_chunks=life.num_chunks + 1)
        else:
            self._lives[handle] = life._replace(first=self._num_steps)
