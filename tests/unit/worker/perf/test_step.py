"""A step gets no cheaper with more work, does the work that the model implies, and says what binds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.cards import CARDS, Card, CpuMeasurement, card_named, cpu_card
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.model_shape import BUILT_IN_MODELS, ModelShape
from headrace_worker.perf.precision import kv_precision, weight_precision
from headrace_worker.perf.resources import Resource
from headrace_worker.perf.step import Roofline, StepLoad

from .strategies import cards, placements

LARGE = BUILT_IN_MODELS["llama-3.1-70b"]
SMALL = BUILT_IN_MODELS["llama-3.1-8b"]


def replica(
    shape: ModelShape = LARGE,
    layout: Layout | None = None,
    card: str = "h100-80gib",
    weights: str = "fp8",
    kv: str = "bf16",
) -> Roofline:
    layout = layout or Layout(2)
    return Roofline(shape, weight_precision(weights), kv_precision(kv), card_named(card), layout)


@given(placements(), cards(), st.integers(0, 512), st.integers(0, 4096), st.integers(1, 4096), st.integers(0, 64))
def test_more_work_never_takes_less_time(
    placement: tuple[ModelShape, Layout], card: Card, rows: int, context: int, tokens: int, more: int
) -> None:
    shape, layout = placement
    roofline = Roofline(shape, weight_precision("fp8"), kv_precision("fp16"), card, layout)
    base = StepLoad((Prefill(tokens),), rows, rows * context)
    seconds = roofline.step_time_s(base)
    longer = replace(base, num_context_tokens=base.num_context_tokens + more * 100)
    deeper = replace(base, prefills=(Prefill(tokens, more * 100),))
    wider = replace(base, prefills=(Prefill(tokens + more),))
    crowded = replace(base, num_decodes=rows + more, num_context_tokens=(rows + more) * context)
    for heavier in (longer, deeper, wider, crowded):
        assert roofline.step_time_s(heavier) >= seconds * (1 - 1e-9)


@given(placements(), st.integers(1, 64), st.integers(1, 8192))
def test_no_step_beats_the_published_peaks(placement: tuple[ModelShape, Layout], rows: int, tokens: int) -> None:
    shape, layout = placement
    for card in CARDS.values():
        roofline = Roofline(shape, weight_precision("fp8"), kv_precision("fp16"), card, layout)
        shares = roofline.step(StepLoad((Prefill(tokens),), rows, rows * 100)).binding(0.5, 0.6).shares
        assert max(shares[each] for each in Resource if each is not Resource.HBM_CAPACITY) < 1


def test_prefill_flops_are_two_per_parameter_and_token_plus_attention() -> None:
    roofline = replica(layout=Layout(1))
    cost = roofline.step(StepLoad((Prefill(4096),)))
    matrices = LARGE.num_layers * (LARGE.attention_params + LARGE.mlp_params)
    attention = 80 * 4 * 64 * 128 * 4096 * 4097 / 2
    assert cost.flops == pytest.approx(2 * matrices * 4096 + attention + 2 * LARGE.embedding_params, rel=1e-9)


def test_decode_reads_every_weight_and_every_key_once() -> None:
    roofline = replica(layout=Layout(1))
    cost = roofline.step(StepLoad((), 1, 100_000))
    matrices = LARGE.num_layers * (LARGE.attention_params + LARGE.mlp_params) + 2 * LARGE.embedding_params
    assert cost.memory_bytes == pytest.approx(matrices + 100_000 * 327_680, rel=0.01)


def test_tensor_ranks_send_two_all_reduces_a_layer() -> None:
    cost = replica(layout=Layout(4)).step(StepLoad((Prefill(1000),)))
    assert cost.link_bytes == pytest.approx(80 * 2 * (1000 * 8192 * 2) * 2 * 3 / 4)
    assert replica(layout=Layout(1)).step(StepLoad((Prefill(1000),))).link_bytes == 0


def test_stages_of_a_pipeline_add_up_to_the_model() -> None:
    load = StepLoad((Prefill(512),))
    whole, split = replica(layout=Layout(1)), replica(layout=Layout(1, 4))
    assert split.step(load).flops == pytest.approx(whole.step(load).flops)
    assert sum(split.stage_times_s(load)) == pytest.approx(whole.step_time_s(load), rel=0.01)


@pytest.mark.parametrize(
    ("load", "resource"),
    [
        (StepLoad((Prefill(8192),)), Resource.TENSOR_COMPUTE),
        (StepLoad((), 1, 1000), Resource.HBM_BANDWIDTH),
        (StepLoad((), 32, 32 * 4000), Resource.HBM_BANDWIDTH),
    ],
)
def test_prefill_binds_on_compute_and_decode_on_bandwidth(load: StepLoad, resource: Resource) -> None:
    assert replica().step(load).binding(0.5, 0.6).resource == resource


def test_prefill_over_a_slow_link_binds_on_the_link() -> None:
    load = StepLoad((Prefill(4096),))
    binding = replica(card="l40s-48gib", layout=Layout(8)).step(load).binding(0.5, 0.6)
    assert binding.resource == Resource.LINKS
    assert binding.share > 0.3


def test_capacity_binds_when_one_more_sequence_does_not_fit() -> None:
    binding = replica().step(StepLoad((), 32, 32 * 4000)).binding(0.97, 1.01)
    assert (binding.resource, binding.share) == (Resource.HBM_CAPACITY, 0.97)


def test_a_window_bounds_what_decode_reads_and_prefill_scores() -> None:
    windowed = replace(SMALL, sliding_window=1024, num_window_layers=32)
    full, short = replica(SMALL, Layout(1)), replica(windowed, Layout(1))
    for load in (StepLoad((), 64, 64 * 32_000), StepLoad((Prefill(16_384),))):
        assert short.step_time_s(load) < 0.75 * full.step_time_s(load)
    within = StepLoad((Prefill(500),), 4, 4 * 800)
    assert short.step_time_s(within) == pytest.approx(full.step_time_s(within))


def test_fp8_weights_on_a_card_without_fp8_save_bandwidth_only() -> None:
    wide, narrow = (replica(SMALL, Layout(1), "a100-80gib", weights) for weights in ("fp16", "fp8"))
    decode, prefill = StepLoad((), 1, 100), StepLoad((Prefill(8192),))
    assert narrow.step_time_s(decode) < 0.75 * wide.step_time_s(decode)
    assert narrow.step_time_s(prefill) == pytest.approx(wide.step_time_s(prefill), rel=0.02)


def test_fp8_kv_halves_what_long_contexts_cost() -> None:
    load = StepLoad((), 64, 64 * 8000)
    wide, narrow = (replica(kv=kv).step(load).time_by_name()["decode_attention"] for kv in ("bf16", "fp8"))
    assert 0.5 < narrow / wide < 0.65


def test_a_measured_cpu_decodes_at_its_memory_bandwidth() -> None:
    card = cpu_card(CpuMeasurement(8 * 2**30, 100e9, 20e9, 10e9, 2))
    shape = BUILT_IN_MODELS["smollm2-135m-instruct"]
    roofline = Roofline(shape, weight_precision("fp32"), kv_precision("fp32"), card, Layout())
    floor_s = shape.num_params * 4 / 20e9
    assert floor_s < roofline.step_time_s(StepLoad((), 1, 100)) < 1.3 * floor_s


def test_a_layer_is_listed_operation_by_operation() -> None:
    """Names in order; the layers of one stage and the output make the step."""
    roofline, load = replica(), StepLoad((Prefill(512),), 8, 8000)
    layer = list(roofline.layer(load))
    assert [op.name for op in layer] == [
        "norm", "qkv", "rope", "kv_write", "prefill_attention", "decode_attention", "attention_out",
        "attention_all_reduce", "norm", "mlp_up", "activation", "mlp_down", "mlp_all_reduce",
    ]  # fmt: skip
    rest = {"output", "sampler"}
    cost = roofline.step(load)
    of_layers = sum(op.time_s for op in cost.ops if op.name not in rest) - cost.ops[-6].time_s
    assert of_layers == pytest.approx(80 * sum(op.time_s for op in layer), rel=1e-6)
