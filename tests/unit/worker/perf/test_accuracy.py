"""The figures of the roofline on data that it was not fitted on, and that its constants are what the fit gives."""

import dataclasses
from types import ModuleType
from typing import Any

import pytest

from benchmarks import roofline as bench
from benchmarks import roofline_fit
from headrace_worker.perf.cards import card_named
from headrace_worker.perf.efficiency import H100_FIT
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.model_shape import BUILT_IN_MODELS
from headrace_worker.perf.precision import kv_precision, weight_precision
from headrace_worker.perf.prediction import ClosedLoop, predict_closed_loop
from headrace_worker.perf.step import Roofline


@pytest.fixture(scope="module")
def rows() -> list[bench.Row]:
    return bench.end_to_end_rows()


def test_every_end_to_end_run_is_there(rows: list[bench.Row]) -> None:
    assert len(rows) == 45


def test_tpot_figures_hold(rows: list[bench.Row]) -> None:
    figures = {figure.figure: figure for figure in bench.tpot_figures(rows)}
    gated = [figure for figure in figures.values() if figure.target is not None]
    assert len(gated) == 2
    assert all(figure.ok for figure in gated), gated


def test_tpot_does_not_get_worse_than_it_is(rows: list[bench.Row]) -> None:
    """Median 3 % and worst 11 % when this was written: a change that costs more is a regression."""
    errors = sorted(abs(row.tpot_error) for row in rows if row.concurrency <= 16)
    assert errors[len(errors) // 2] < 0.05
    assert errors[-1] < 0.15


def test_the_kv_knee_is_between_16_and_32_users_for_long_prompts_on_two_cards(rows: list[bench.Row]) -> None:
    """Measured TTFT jumps from 1.3 s at 16 users to 6.5 s at 32 and 59 s at 64."""
    long = {row.concurrency: row for row in rows if row.tensor == 2 and row.num_prompt_tokens == 8192}
    assert long[16].predicted.num_running == 16
    assert long[32].predicted.num_running < 32
    assert long[64].predicted.num_running < 64


def test_other_layouts_do_not_run_out_of_kv(rows: list[bench.Row]) -> None:
    assert all(row.predicted.num_running == row.concurrency for row in rows if row.tensor > 2)


def test_h200_follows_from_its_published_figures() -> None:
    """Llama-3.1-70B FP8 on one H200, 1,024 in and out, 8 users: 22.6 ms per token measured end to end."""
    roofline = Roofline(
        BUILT_IN_MODELS["llama-3.1-70b"],
        weight_precision("fp8"),
        kv_precision("bf16"),
        card_named("h200-141gib"),
        Layout(),
    )
    predicted = predict_closed_loop(roofline, ClosedLoop(921, 921, 8), max_running=100)
    assert predicted.tpot_s == pytest.approx(22.6e-3, rel=0.10)


def test_a100_over_h100_follows_from_published_figures() -> None:
    prompt, token = (figure.measured for figure in bench.transfer_figures())
    assert prompt is not None and prompt < 0.20
    assert token is not None and token < 0.10


def test_design_figures_come_out_of_the_planner() -> None:
    assert all(figure.ok for figure in bench.design_figures())


@pytest.mark.parametrize(
    ("residuals", "constants", "median_error"),
    [
        (roofline_fit.gemm_residuals("bfloat16"), dataclasses.astuple(H100_FIT.gemm_wide), 0.06),
        (roofline_fit.gemm_residuals("fp8"), dataclasses.astuple(H100_FIT.gemm_fp8), 0.07),
        (roofline_fit.all_reduce_residuals(), dataclasses.astuple(H100_FIT.collective), 0.05),
        (roofline_fit.prefill_residuals("bfloat16"), dataclasses.astuple(H100_FIT.attention_wide)[:4], 0.08),
        (roofline_fit.prefill_residuals("fp8"), dataclasses.astuple(H100_FIT.attention_fp8)[:4], 0.10),
        (roofline_fit.decode_residuals("bfloat16", 0.7), dataclasses.astuple(H100_FIT.attention_wide)[4:], 0.06),
        (roofline_fit.decode_residuals("fp8", 0.7), dataclasses.astuple(H100_FIT.attention_fp8)[4:], 0.07),
    ],
    ids=["gemm", "gemm_fp8", "all_reduce", "prefill", "prefill_fp8", "decode", "decode_fp8"],
)
def test_constants_describe_the_kernel_tables(residuals: Any, constants: Any, median_error: float) -> None:
    errors = sorted(abs(residual) for residual in residuals(constants))
    assert errors[len(errors) // 2] < median_error


@pytest.mark.slow
def test_the_committed_constants_are_what_the_fit_gives() -> None:
    module: ModuleType = roofline_fit
    fits = {each.name: each.constants for each in module.fit_all()}
    attention = ("attention_wide", "attention_fp8")
    committed = {name: dataclasses.astuple(getattr(H100_FIT, name)) for name in ("gemm_wide", "gemm_fp8", "collective")}
    committed |= {f"{name}.prefill": dataclasses.astuple(getattr(H100_FIT, name))[:4] for name in attention}
    committed |= {f"{name}.decode": dataclasses.astuple(getattr(H100_FIT, name))[4:] for name in attention}
    assert set(fits) == set(committed)
    for name, constants in committed.items():
        # Constants fitted to nothing (1e-11 and less) are committed as 0.
        assert list(constants) == pytest.approx(list(fits[name]), rel=0.01, abs=1e-10), name
