"""Microbatches moving through pipeline stages: bubbles and the time of a step. Knows no model and no card.

GPipe's schedule (Huang et al. 2019): microbatch i is in stage s at slot i + s.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineSchedule:
    """`num_microbatches` over `num_stages`, drawn as stages x time slots."""

    num_microbatches: int
    num_stages: int

    @property
    def num_slots(self) -> int:
        """Time slots from the first microbatch entering to the last one leaving."""
        return self.num_microbatches + self.num_stages - 1

    @property
    def num_cells(self) -> int:
        """All stage-slots."""
        return self.num_stages * self.num_slots

    @property
    def num_idle_cells(self) -> int:
        """Stage-slots without work: the bubble."""
        return self.num_cells - self.num_stages * self.num_microbatches

    @property
    def bubble(self) -> float:
        """Share of idle cells."""
        return self.num_idle_cells / self.num_cells


def pipelined_time_s(stage_times_s: Sequence[float], num_microbatches: int) -> float:
    """Seconds until the last microbatch leaves: one fills the pipe, the others follow at the slowest stage's pace."""
    return sum(stage_times_s) + (num_microbatches - 1) * max(stage_times_s)


class StageLine:
    """Stages that each work at one microbatch at a time, in order: one that meets a busy stage waits before it.

    `free_s` is when each stage is done with all that has entered, on the caller's clock.
    """

    def __init__(self, num_stages: int) -> None:
        self.free_s = [0.0] * num_stages

    def enter(self, stage_times_s: Sequence[float], at_s: float = 0.0) -> float:
        """When a microbatch that comes to the first stage at `at_s`, behind all others, leaves the last one."""
        now, free_s = at_s, self.free_s
        assert len(stage_times_s) == len(free_s), "a microbatch passes every stage"
        for stage, seconds in enumerate(stage_times_s):
            now = max(now, free_s[stage]) + seconds
            free_s[stage] = now
        return now


def line_time_s(microbatches: Sequence[Sequence[float]]) -> float:
    """Seconds until the last of these leaves stages that were idle, each given by its time in every stage."""
    line = StageLine(len(microbatches[0]))
    return [line.enter(each) for each in microbatches][-1]
