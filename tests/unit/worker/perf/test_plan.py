"""The planner chooses the fewest devices, keeps the reserve on each, and says what binds."""

from dataclasses import replace

import pytest

from headrace_worker.perf.cards import GIB, card_named
from headrace_worker.perf.errors import LayoutError, PerfError
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.model_shape import BUILT_IN_MODELS
from headrace_worker.perf.plan import PlanReport, PlanRequest, plan
from headrace_worker.perf.precision import kv_precision, weight_precision
from headrace_worker.perf.resources import Resource

LARGE = BUILT_IN_MODELS["llama-3.1-70b"]
H100 = card_named("h100-80gib")


def request(
    weights: str = "fp8", kv: str = "fp16", card: str = "h100-80gib", layout: Layout | None = None
) -> PlanRequest:
    return PlanRequest(
        LARGE, weight_precision(weights), kv_precision(kv), card_named(card), 8192, layout, reserve_bytes=4 * GIB
    )


def planned(weights: str = "fp8", card: str = "h100-80gib", layout: Layout | None = None) -> PlanReport:
    return plan(request(weights, card=card, layout=layout))


@pytest.mark.parametrize(
    ("weights", "devices", "reservations"), [("fp16", 2, 8), ("bf16", 2, 8), ("fp8", 1, 4), ("int4", 1, 17)]
)
def test_reference_figures(weights: str, devices: int, reservations: int) -> None:
    report = planned(weights)
    assert (report.layout.num_devices, report.full_reservations) == (devices, reservations)
    assert report.kv_bytes_per_token == 327_680
    assert report.kv_bytes_per_sequence == 2.5 * GIB


def test_fp8_kv_holds_twice_the_sequences_only_when_asked() -> None:
    assert plan(request("int4", kv="fp16")).full_reservations == 17
    assert plan(request("int4", kv="fp8")).full_reservations == 34


def test_a_layout_that_is_too_small_is_an_answer_with_the_number_needed() -> None:
    report = planned("fp16", layout=Layout(1))
    assert not report.fits
    assert (report.layout.num_devices, report.min_devices, report.full_reservations) == (1, 2, 0)
    assert report.prefill == report.decode == ()
    assert "does not fit" in report.notes[0]


def test_a_context_that_no_pool_of_one_device_holds_takes_more_devices() -> None:
    """131,072 tokens are 40 GiB of KV; beside FP8 weights one 80 GiB device has 10.8."""
    report = plan(replace(request(), context=131_072))
    assert report.layout.num_devices == 2


def test_devices_beyond_one_fast_link_domain_become_stages() -> None:
    report = planned("fp16", card="rtx4090-24gib")
    assert report.layout == Layout(8, 1)
    stretched = plan(replace(request("fp32", card="rtx4090-24gib")))
    assert stretched.layout.tensor <= 8 < stretched.layout.num_devices


def test_what_fits_nowhere_is_refused() -> None:
    huge = LARGE.with_params(10**14)
    with pytest.raises(LayoutError, match="no layout"):
        plan(replace(request(), shape=huge))


def test_a_layout_that_does_not_divide_is_refused_with_numbers() -> None:
    with pytest.raises(LayoutError, match="3 does not divide 64 query heads"):
        planned(layout=Layout(3))


@pytest.mark.parametrize("context", [0, -1, 131_073])
def test_context_must_be_within_the_model(context: int) -> None:
    with pytest.raises(PerfError) as caught:
        plan(replace(request(), context=context))
    assert caught.value.field == "context"


def test_prefill_binds_on_compute_and_a_full_pool_on_capacity() -> None:
    report = planned()
    assert {step.binding for step in report.prefill} == {Resource.TENSOR_COMPUTE}
    assert report.decode[0].binding == Resource.HBM_BANDWIDTH
    assert report.decode[-1].batch == report.full_reservations
    assert report.decode[-1].binding == Resource.HBM_CAPACITY
    assert report.decode[-1].shares[Resource.HBM_CAPACITY] <= 1


def test_one_h100_fits_fp8_yet_misses_420_ms_for_4096_tokens() -> None:
    """Memory says yes, time says no: the reason why a plan predicts both."""
    report = planned("fp8")
    assert report.fits
    [step] = [step for step in report.prefill if step.num_tokens == 4096]
    assert step.time_s > 0.420
    [step] = [step for step in planned("fp8", layout=Layout(2)).prefill if step.num_tokens == 4096]
    assert step.time_s < 0.420


def test_doubts_are_noted() -> None:
    windowed = replace(LARGE, sliding_window=4096, num_window_layers=40)
    assert any("mask" in note for note in plan(replace(request(), shape=windowed)).notes)
    assert any("replicated" in note for note in planned(layout=Layout(16)).notes)
    assert any("no fp8 arithmetic" in note for note in planned(card="a100-80gib").notes)
    assert any("4-bit" in note for note in planned("int4").notes)
    assert any("workspace" in note for note in plan(replace(request(), reserve_bytes=GIB)).notes)
    assert planned().notes == ()
