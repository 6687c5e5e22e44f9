"""A replica whose layers lie in stages: as many plans are in flight as there are stages, each with its share of the
sequences, and the chunks of one prompt follow each other. Which sequences a plan may hold is the scheduler's word.

    plans --> [stage 0] -> [stage 1] -> ... -> tokens --> scheduler, next plan
                a plan that meets a busy stage waits before it

As production's loop does, it plans when nothing is in flight and when the oldest plan has come back: who comes in
between waits for that. Every step is planned; there is no fast-forward here.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from headrace_sim.clock import Clock
from headrace_sim.job import Job
from headrace_sim.replica import Make, Replica, Step, Transfers
from headrace_sim.step_timer import load_of
from headrace_worker.perf.pipeline import StageLine


class _InFlight(NamedTuple):
    """A plan that has been launched, and when its last stage is done with it."""

    step: Step
    done_s: float


class PipelinedReplica(Replica):
    """`busy_s` is the mean of the stages' time at work; `active_s` the time in which anything was in flight."""

    def __init__(
        self,
        replica_id: str,
        pool: str,
        make: Make,
        clock: Clock,
        on_ended: Callable[[Job], None],
        transfers: Transfers,
    ) -> None:
        super().__init__(replica_id, pool, make, clock, on_ended, transfers)
        assert make.pipeline is not None, "a replica of one stage is not pipelined"
        assert make.pipeline.num_stages == make.limits.depth, "one plan in flight for each stage"
        self._pipeline = make.pipeline
        self._line = StageLine(make.pipeline.num_stages)
        self._in_flight: deque[_InFlight] = deque()
        self._host_free_s = 0.0
        self._active_since_s = 0.0
        self.active_s = 0.0

    @property
    def bubble(self) -> float:
        """Share of the stages' time without work while anything was in flight."""
        return 1 - self.busy_s / self.active_s if self.active_s else 0.0

    def _go_on(self) -> None:
        """Fill the pipeline, if nothing is in flight: else that is done when the oldest plan comes back."""
        if self._in_flight or self.is_gone:
            return
        self._active_since_s = self._clock.now
        self._fill()

    def _fill(self) -> None:
        """Make as many plans as may be in flight, then wait for the oldest."""
        while len(self._in_flight) < self.make.limits.max_in_flight and (plan := self._plan()) is not None:
            self._num_plans += 1
            times = [each * self.slowness for each in self._pipeline.timer.stages_s(*load_of(plan))]
            self._host_free_s = max(self._host_free_s, self._clock.now) + self._pipeline.host_s
            done_s = self._line.enter(times, self._host_free_s)
            self.busy_s += sum(times, 0.0) / len(times)
            step = Step(plan, self._clock.now, 1, done_s - self._clock.now, 0.0, self._num_plans)
            self._in_flight.append(_InFlight(step, done_s))
        if not self._in_flight:
            self._sleep()
            return
        oldest = self._in_flight[0]
        told_s = max(oldest.done_s, self._line.free_s[0]) if self._pipeline.host_computes else oldest.done_s
        self._clock.at(told_s, self._come_back, oldest.step.number)

    def _come_back(self, number: int) -> None:
        """The oldest plan has left the last stage."""
        if self.is_gone or not self._in_flight or self._in_flight[0].step.number != number:
            return
        step = self._in_flight.popleft().step
        now = self._clock.now
        self.active_s += now - self._active_since_s
        self._active_since_s = now
        self._settle(step)
        self._leave_if_idle()
        if not self.is_gone:
            self._fill()
