"""Bubbles, cell by cell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.perf.pipeline import PipelineSchedule, pipelined_time_s


def test_three_microbatches_on_four_stages_idle_in_twelve_of_twenty_four_cells() -> None:
    schedule = PipelineSchedule(num_microbatches=3, num_stages=4)
    assert (schedule.num_idle_cells, schedule.num_cells) == (12, 24)
    assert schedule.bubble == 0.5


@given(st.integers(1, 40), st.integers(1, 12))
def test_idle_cells_are_those_of_the_drawn_schedule(num_microbatches: int, num_stages: int) -> None:
    schedule = PipelineSchedule(num_microbatches, num_stages)
    busy = {(stage, stage + microbatch) for stage in range(num_stages) for microbatch in range(num_microbatches)}
    cells = {(stage, slot) for stage in range(num_stages) for slot in range(schedule.num_slots)}
    assert busy <= cells
    assert schedule.num_idle_cells == len(cells - busy)


def test_equal_stages_take_one_slot_each() -> None:
    assert pipelined_time_s([2.0, 2.0, 2.0, 2.0], 3) == 2.0 * PipelineSchedule(3, 4).num_slots


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=8), st.integers(1, 20))
def test_the_time_equals_a_simulation_of_the_stages(stage_times_s: list[float], num_microbatches: int) -> None:
    """A microbatch starts in a stage when it has left the previous one and the stage is free."""
    free_at = [0.0] * len(stage_times_s)
    for _ in range(num_microbatches):
        now = 0.0
        for stage, seconds in enumerate(stage_times_s):
            now = max(now, free_at[stage]) + seconds
            free_at[stage] = now
    assert pipelined_time_s(stage_times_s, num_microbatches) == pytest.approx(free_at[-1])
