"""Degrees that do not divide are refused with both numbers."""

import pytest
from hypothesis import given

from headrace_worker.perf.errors import LayoutError
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.model_shape import BUILT_IN_MODELS, ModelShape

from .strategies import placements

SMOL = BUILT_IN_MODELS["smollm2-135m-instruct"]
LARGE = BUILT_IN_MODELS["llama-3.1-70b"]


def test_nine_heads_do_not_split_in_two() -> None:
    with pytest.raises(LayoutError, match="2 does not divide 9 query heads"):
        Layout(tensor=2).check(SMOL)


def test_nine_heads_split_in_three() -> None:
    Layout(tensor=3).check(SMOL)


def test_more_ranks_than_kv_heads_replicate_them() -> None:
    Layout(tensor=16).check(LARGE)
    assert Layout(tensor=16).kv_heads_per_rank(LARGE) == 1


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(LayoutError, match="31 stages need more than the 30 layers"):
        Layout(pipeline=31).check(SMOL)


@pytest.mark.parametrize("degrees", [(0, 1), (1, 0), (-2, 1)])
def test_degrees_start_at_one(degrees: tuple[int, int]) -> None:
    with pytest.raises(LayoutError, match="at least 1"):
        Layout(*degrees)


@given(placements())
def test_stages_hold_every_layer_once_and_differ_by_at_most_one(placement: tuple[ModelShape, Layout]) -> None:
    shape, layout = placement
    layers = layout.stage_layers(shape)
    assert sum(layers) == shape.num_layers
    assert max(layers) - min(layers) <= 1
