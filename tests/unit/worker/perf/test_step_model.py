"""Coefficients travel by name and come back equal; predictions are sums of features and never fall with more work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.cards import card_named
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.model_shape import BUILT_IN_MODELS
from headrace_worker.perf.precision import kv_precision, weight_precision
from headrace_worker.perf.prior import knee_tokens, prior_model
from headrace_worker.perf.step import Roofline, StepLoad
from headrace_worker.perf.step_model import FEATURES, StepModel, features_of
from headrace_worker.scheduling.chunking import Beside, prefill_budget

ROOFLINE = Roofline(
    BUILT_IN_MODELS["llama-3.1-70b"], weight_precision("fp8"), kv_precision("bf16"), card_named("h100-80gib"), Layout(2)
)
MODEL = prior_model(ROOFLINE)
COUNTS = st.integers(0, 20_000)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_one_chunk_beside_decodes_is_predicted_as_any_step(prefill: int, rows: int, context: int, cached: int) -> None:
    load = StepLoad((Prefill(prefill, cached),), rows, context)
    assert MODEL.predict_step_s(prefill, rows, context, cached) == MODEL.predict(load)


def test_features_are_what_they_are_called() -> None:
    load = StepLoad((Prefill(100), Prefill(50, 1000)), num_decodes=8, num_context_tokens=4000)
    pairs = 100**2 / 2 + 50 * 1000 + 50**2 / 2
    assert dict(zip((*FEATURES, "beyond"), features_of(load, 128), strict=True)) == {
        "step": 1, "tokens": 158, "decode_rows": 8, "context_tokens": 4000, "attention_pairs": pairs, "beyond": 30,
    }  # fmt: skip


@given(st.lists(st.floats(0, 1e3), min_size=6, max_size=6), st.integers(1, 4096), st.integers(0, 10**9))
def test_a_model_survives_its_journey(values: list[float], knee: int, num_samples: int) -> None:
    model = StepModel(tuple(values), knee, num_samples)
    assert StepModel.from_mapping(model.to_mapping(), num_samples) == model


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"tokens": -1.0}, "coefficients[tokens]"),
        ({"tokens": float("nan")}, "coefficients[tokens]"),
        ({"step": float("inf")}, "coefficients[step]"),
        ({"surprise": 1.0}, "coefficients[surprise]"),
        ({"tokens_beyond_7": 1.0}, "coefficients"),
    ],
)
def test_a_broken_mapping_is_refused_by_name(changed: dict[str, float], field: str) -> None:
    with pytest.raises(PerfError) as caught:
        StepModel.from_mapping(MODEL.to_mapping() | changed)
    assert caught.value.field == field


@pytest.mark.parametrize("missing", ["step", f"tokens_beyond_{MODEL.knee_tokens}"])
def test_a_missing_coefficient_is_refused(missing: str) -> None:
    mapping = MODEL.to_mapping()
    del mapping[missing]
    with pytest.raises(PerfError):
        StepModel.from_mapping(mapping)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_prediction_never_falls_with_more_work(prefill: int, rows: int, context: int, more: int) -> None:
    seconds = MODEL.predict_step_s(prefill, rows, context)
    assert MODEL.predict_step_s(prefill + more, rows, context) >= seconds
    assert MODEL.predict_step_s(prefill, rows + more, context) >= seconds
    assert MODEL.predict_step_s(prefill, rows, context + more) >= seconds


@pytest.mark.parametrize(
    "load",
    [
        StepLoad((), 1, 1000),
        StepLoad((), 64, 64 * 1500),
        StepLoad((Prefill(256),)),
        StepLoad((Prefill(512),), 32, 32 * 1500),
        StepLoad((Prefill(4096),)),
        StepLoad((Prefill(2048, 4096),)),
    ],
)
def test_the_prior_is_close_to_the_roofline(load: StepLoad) -> None:
    assert MODEL.predict(load) == pytest.approx(ROOFLINE.step_time_s(load), rel=0.08)


def test_the_knee_is_where_arithmetic_takes_as_long_as_the_weights() -> None:
    """About 240 rows of FP8 on an H100: below it a step costs little more than reading the weights."""
    knee = knee_tokens(ROOFLINE)
    idle, below, above = (ROOFLINE.step_time_s(StepLoad((Prefill(tokens),))) for tokens in (1, knee // 2, 4 * knee))
    assert below < 1.25 * idle
    assert above > 2 * idle


def test_a_prompt_is_the_sum_of_its_chunks() -> None:
    chunks = [Prefill(512, 100), Prefill(512, 612), Prefill(176, 1124)]
    beside = StepLoad((), 4, 4000)
    expected = sum(MODEL.predict(StepLoad((chunk,), 4, 4000)) for chunk in chunks)
    assert MODEL.prefill_s(1200, num_cached=100, chunk_tokens=512, beside=beside) == pytest.approx(expected)


def test_ttft_grows_with_the_queue_and_shrinks_with_the_cache() -> None:
    idle = MODEL.ttft_s(4096, 0, num_tokens_ahead=0, beside=StepLoad())
    assert idle == pytest.approx(MODEL.prefill_s(4096))
    assert MODEL.ttft_s(4096, 0, num_tokens_ahead=2000, beside=StepLoad()) > idle
    assert MODEL.ttft_s(1024, 3072, num_tokens_ahead=0, beside=StepLoad()) < idle / 2


@pytest.mark.parametrize(("gap_s", "rows"), [(0.030, 16), (0.050, 64), (0.100, 128)])
def test_the_scheduler_chooses_its_chunk_with_it(gap_s: float, rows: int) -> None:
    """It satisfies the scheduler's port, and the chunk found keeps the inter-token budget on the roofline itself."""
    chunk = prefill_budget(MODEL, gap_s, Beside(rows, rows * 1000, 0), (16, 8192))
    assert 16 < chunk < 8192
    took_s = ROOFLINE.step_time_s(StepLoad((Prefill(chunk),), rows, rows * 1000))
    assert 0.85 * gap_s < took_s < 1.05 * gap_s
