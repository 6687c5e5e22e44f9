"""Histograms with an edge at each objective, and the board of the classes, as Prometheus reads them."""

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.v1 import snapshot_pb2
from headrace_gateway.latency import Latency
from headrace_gateway.slo import Met
from headrace_gateway.slo_board import NO_CLASS, SloBoard
from headrace_kit import telemetry

LABELS = {"model": "m", "slo_class": "c"}


def value(name: str, **labels: str) -> Any:
    return telemetry.REGISTRY.get_sample_value(name, labels)


@pytest.fixture
def latency() -> Iterator[Latency]:
    made = Latency("test_latency_seconds", "of these tests")
    yield made
    telemetry.REGISTRY.unregister(made)


def test_values_fall_either_side_of_an_objective_and_ten_minutes_are_finite(latency: Latency) -> None:
    latency.set_objectives([0.7, 0.65, 0.0])
    series = latency.of("m", "c")
    for seconds in (0.66, 0.7, 0.75, 480.0, 0.02, 0.08, 0.0005):
        series.add(seconds)
    edges = ("0.001", "0.02", "0.1", "0.65", "0.7", "1.0", "300.0", "600.0", "+Inf")
    counts = [value("test_latency_seconds_bucket", **LABELS, le=edge) for edge in edges]
    assert counts == [1, 2, 3, 3, 5, 6, 6, 7, 7]
    assert value("test_latency_seconds_count", **LABELS) == 7
    assert value("test_latency_seconds_sum", **LABELS) == pytest.approx(0.66 + 0.7 + 0.75 + 480 + 0.02 + 0.08 + 0.0005)


def test_new_objectives_begin_new_counts_and_the_same_ones_do_not(latency: Latency) -> None:
    latency.of("m", "c").add(0.1)
    latency.set_objectives([0.7])  # an edge that is there already
    assert value("test_latency_seconds_count", **LABELS) == 1
    latency.set_objectives([0.123])
    assert value("test_latency_seconds_count", **LABELS) is None
    latency.of("m", "c").add(0.12)
    assert value("test_latency_seconds_bucket", **LABELS, le="0.123") == 1


def test_a_value_points_to_its_trace(latency: Latency) -> None:
    series = latency.of("m", "c")
    series.add(0.3)
    series.point_to(0.3, "a" * 32)
    page = telemetry.exposition("application/openmetrics-text")[0].decode()
    line = next(one for one in page.splitlines() if one.startswith("test_latency_seconds_bucket") and 'le="0.3"' in one)
    assert f'# {{trace_id="{"a" * 32}"}} 0.3' in line


@pytest.fixture
def board() -> Iterator[SloBoard]:
    from headrace_gateway.instruments import BOARD

    telemetry.REGISTRY.unregister(BOARD)
    made = SloBoard(clock=lambda: 500.0)
    made.apply([snapshot_pb2.SloClass(name="chat", ttft_ms=700, inter_token_ms=100, target=0.9)])
    yield made
    telemetry.REGISTRY.unregister(made)
    telemetry.REGISTRY.register(BOARD)


def test_the_board_tells_attainment_goodput_and_burn(board: SloBoard) -> None:
    budgets = board.budgets("chat")
    before = {met: value("slo_responses_total", slo_class="chat", met=met) or 0 for met in ("counted", "ttft", "good")}
    broken = {"slo_class": "chat", "budget": "ttft", "phase": "queue"}
    late = value("slo_broken_total", **broken) or 0
    for number in range(4):
        met = Met(True, True, True) if number else Met(False, True, False)
        board.count(budgets, met, "" if number else "queue")
    after = {met: value("slo_responses_total", slo_class="chat", met=met) - before[met] for met in before}
    assert after == {"counted": 4, "ttft": 3, "good": 3}
    assert value("slo_broken_total", **broken) == late + 1
    assert value("slo_attainment_ratio", slo_class="chat", budget="ttft", window="5m") == 0.75
    assert value("slo_attainment_ratio", slo_class="chat", budget="inter_token", window="1h") == 1.0
    assert value("slo_burn_ratio", slo_class="chat", window="5m") == pytest.approx(2.5)
    assert value("goodput_responses_per_second", slo_class="chat", window="5m") == 3 / 300


def test_a_class_that_is_not_in_the_snapshot_has_no_budget_and_one_label(board: SloBoard) -> None:
    for name in ("", "made-up-1", "made-up-2"):
        assert board.budgets(name).name == NO_CLASS
    before = value("ttft_infeasible_total", slo_class=NO_CLASS) or 0
    board.infeasible(board.budgets("made-up"))
    assert value("ttft_infeasible_total", slo_class=NO_CLASS) == before + 1


def test_another_snapshot_keeps_what_was_counted_unless_the_budgets_change(board: SloBoard) -> None:
    board.count(board.budgets("chat"), Met(True, True, True), "")
    same = snapshot_pb2.SloClass(name="chat", ttft_ms=700, inter_token_ms=100, target=0.9)
    board.apply([same, snapshot_pb2.SloClass(name="batch")])
    assert board.over("5m")["chat"].num == 1
    same.ttft_ms = 800
    board.apply([same])
    assert {name: got.num for name, got in board.over("5m").items()} == {"chat": 0}
