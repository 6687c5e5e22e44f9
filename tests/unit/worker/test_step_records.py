"""What steps leave on the page that Prometheus reads."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_kit import telemetry
from headrace_worker.engine import EngineOutput
from headrace_worker.execution.runner import GroupTimes
from headrace_worker.execution.step_log import StepSplit
from headrace_worker.perf.cards import CARDS
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.live import achieved
from headrace_worker.perf.model_shape import ModelShape
from headrace_worker.perf.precision import weight_precision
from headrace_worker.perf.resources import Resource
from headrace_worker.perf.step import Roofline, StepLoad
from headrace_worker.scheduling.load import Load
from headrace_worker.step_records import StepRecords

SHAPE = ModelShape("m", 32, 4096, 32, 8, 128, 14336, 128_256, 8192)
BF16 = weight_precision("bf16")
ROOFLINE = Roofline(SHAPE, BF16, BF16, CARDS["h100-80gib"], Layout())
DECODES = StepLoad((), 64, 64 * 1024)


def value(name: str, **labels: str) -> Any:
    return telemetry.REGISTRY.get_sample_value(name, labels)


def load(num_promised: int, num_waiting: int = 0) -> Load:
    return Load(0, num_waiting, 0, num_promised, 0, 0, 0, 0, 100, 0.0, None)


def output(num_promised: int = 40, num_waiting: int = 0, took_s: float = 0.01, **more: Any) -> EngineOutput:
    split = StepSplit(0.001, took_s * 0.9, took_s * 0.1, 0.002, 64, 80)
    return EngineOutput(1, (), load(num_promised, num_waiting), split=split, **more)


def test_the_parts_of_a_step_and_its_size_are_told() -> None:
    parts = ("plan", "forward", "sample", "host_gap")
    before = [value("worker_step_seconds_sum", part=part) or 0 for part in parts]
    sizes = value("worker_batch_rows_sum") or 0, value("worker_batch_tokens_sum") or 0
    StepRecords(256).note(output())
    after = [value("worker_step_seconds_sum", part=part) for part in parts]
    assert [new - old for new, old in zip(after, before, strict=True)] == pytest.approx([0.001, 0.009, 0.001, 0.002])
    assert (value("worker_batch_rows_sum") - sizes[0], value("worker_batch_tokens_sum") - sizes[1]) == (64, 80)
    assert value("worker_batch_occupancy_ratio") == 0.25


def test_times_of_the_group_add_up() -> None:
    names = {"busy": "worker_stage_seconds_total", "idle": "worker_stage_seconds_total"}
    before = {state: value(name, state=state) for state, name in names.items()}
    collective = value("worker_collective_seconds_total")
    StepRecords(8).note(EngineOutput(1, (), load(0), times=GroupTimes(0.5, 2.0, 0.25)))
    assert value("worker_collective_seconds_total") - collective == 0.5
    assert {state: value(name, state=state) - before[state] for state, name in names.items()} == {
        "busy": 2.0,
        "idle": 0.25,
    }


def test_a_step_at_predicted_speed_uses_what_was_predicted_and_one_at_half_speed_half() -> None:
    predicted = ROOFLINE.step(DECODES).binding(0.4, 0.4)
    took_s = ROOFLINE.step_time_s(DECODES)
    same, half = (achieved(ROOFLINE, DECODES, took_s * factor, 0.4, 0.4) for factor in (1, 2))
    assert same.resource is predicted.resource is Resource.HBM_BANDWIDTH
    assert same.shares == pytest.approx(predicted.shares)
    assert half.share == pytest.approx(predicted.share / 2)
    assert half.shares[Resource.HBM_CAPACITY] == 0.4
    assert achieved(ROOFLINE, DECODES, took_s, 0.99, 2.0).resource is Resource.HBM_CAPACITY


def test_the_four_resources_are_live_once_there_is_a_roofline() -> None:
    records = StepRecords(256)
    records.note(output(computed=DECODES))
    assert records.binding is None
    records.roofline = ROOFLINE
    records.note(output(computed=DECODES))
    assert records.binding is not None and records.binding.resource is Resource.HBM_BANDWIDTH
    cost = ROOFLINE.step(DECODES)
    assert value("worker_resource_ratio", resource="hbm_bandwidth") == pytest.approx(
        sum(op.memory_s for op in cost.ops) / 0.01
    )
    assert value("worker_resource_ratio", resource="tensor_compute") == pytest.approx(
        sum(op.compute_s for op in cost.ops) / 0.01
    )
    assert value("worker_resource_ratio", resource="hbm_capacity") == 0.4
    assert value("worker_resource_ratio", resource="links") == 0.0
    records.note(output(num_promised=99, num_waiting=3, computed=DECODES))
    assert records.binding.resource is Resource.HBM_CAPACITY
