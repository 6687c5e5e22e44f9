"""Memory is conserved by a split, and grows with what it holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.perf.cards import GIB, Card, card_named
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.memory import (
    MemoryDemand,
    StepShape,
    device_kv_bytes_per_token,
    device_weight_bytes,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    weight_bytes,
    workspace_bytes,
)
from headrace_worker.perf.model_shape import BUILT_IN_MODELS, ModelShape
from headrace_worker.perf.precision import Precision, kv_precision, weight_precision

from .strategies import cards, placements, shapes

FP16 = kv_precision("fp16")
WEIGHTS = st.sampled_from([weight_precision(name) for name in ("fp16", "fp8", "int4", "int4-g128")])


@given(placements(), WEIGHTS)
def test_devices_together_hold_at_least_the_whole_model(
    placement: tuple[ModelShape, Layout], weights: Precision
) -> None:
    """Splitting never makes bytes vanish: no device falls below its share."""
    shape, layout = placement
    precision = weights
    stages = [device_weight_bytes(shape, precision, layout, stage) for stage in range(layout.pipeline)]
    assert sum(stages) * layout.tensor >= weight_bytes(shape, precision)
    kv = [device_kv_bytes_per_token(shape, FP16, layout, stage) for stage in range(layout.pipeline)]
    assert sum(kv) * layout.tensor >= kv_bytes_per_token(shape, FP16)


@given(shapes(), WEIGHTS)
def test_one_device_holds_exactly_the_nominal_weights(shape: ModelShape, weights: Precision) -> None:
    precision = weights
    assert device_weight_bytes(shape, precision, Layout(), 0) == weight_bytes(shape, precision)


@given(placements(), cards(), st.integers(1, 100_000), st.integers(0, 100_000))
def test_longer_sequences_never_fit_more_often(
    placement: tuple[ModelShape, Layout], card: Card, num_tokens: int, more: int
) -> None:
    shape, layout = placement
    weights = weight_precision("fp8")
    shorter = MemoryDemand(shape, weights, FP16, num_tokens).full_reservations(card, layout, 4 * GIB)
    longer = MemoryDemand(shape, weights, FP16, num_tokens + more).full_reservations(card, layout, 4 * GIB)
    assert longer <= shorter


@given(placements(), cards(), st.integers(0, 64 * GIB), st.integers(0, 64 * GIB))
def test_a_larger_reserve_never_fits_more(
    placement: tuple[ModelShape, Layout], card: Card, reserve: int, more: int
) -> None:
    shape, layout = placement
    demand = MemoryDemand(shape, weight_precision("fp8"), FP16, 4096)
    assert demand.full_reservations(card, layout, reserve + more) <= demand.full_reservations(card, layout, reserve)


def test_a_sequence_takes_whole_pages() -> None:
    shape = BUILT_IN_MODELS["llama-3.1-8b"]
    per_token = kv_bytes_per_token(shape, FP16)
    assert kv_bytes_per_sequence(shape, FP16, 17) == 32 * per_token
    assert kv_bytes_per_sequence(shape, FP16, 257, page_tokens=256) == 512 * per_token


def test_window_layers_keep_all_their_pages() -> None:
    shape = BUILT_IN_MODELS["llama-3.1-8b"]
    windowed = ModelShape(**{**vars(shape), "sliding_window": 4096, "num_window_layers": 32})
    assert kv_bytes_per_sequence(windowed, FP16, 65536) == kv_bytes_per_sequence(shape, FP16, 65536)


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(PerfError, match="context"):
        kv_bytes_per_sequence(BUILT_IN_MODELS["llama-3.1-8b"], FP16, 0)


def test_the_last_stage_of_a_pipeline_carries_the_output_matrix() -> None:
    shape = BUILT_IN_MODELS["llama-3.1-70b"]
    layout = Layout(pipeline=4)
    weights = [device_weight_bytes(shape, weight_precision("fp16"), layout, stage) for stage in range(4)]
    assert weights[0] > weights[1] == weights[2] < weights[3]


def test_replicated_kv_heads_do_not_shrink_with_more_ranks() -> None:
    shape = BUILT_IN_MODELS["llama-3.1-70b"]
    per_rank = [device_kv_bytes_per_token(shape, FP16, Layout(tensor), 0) for tensor in (4, 8, 16)]
    assert per_rank == [81_920, 40_960, 40_960]


@given(placements(), cards(), st.integers(1, 16384), st.integers(0, 16384))
def test_workspace_grows_with_the_step(
    placement: tuple[ModelShape, Layout], card: Card, num_tokens: int, more: int
) -> None:
    shape, layout = placement
    small = workspace_bytes(shape, layout, card, StepShape(num_tokens, 64))
    assert workspace_bytes(shape, layout, card, StepShape(num_tokens + more, 64)) >= small


def test_the_design_reserve_covers_the_estimated_workspace() -> None:
    """The reserve of the reference figures is above what a step of 8,192 tokens is estimated to take."""
    shape = BUILT_IN_MODELS["llama-3.1-70b"]
    for tensor in (1, 2, 4, 8):
        assert workspace_bytes(shape, Layout(tensor), card_named("h100-80gib"), StepShape()) < 4 * GIB
