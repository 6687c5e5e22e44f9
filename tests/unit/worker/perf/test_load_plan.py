"""Layouts under a load: what meets a budget, what binds, what it costs; and the case that fits and is too slow."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace_worker.perf.cards import card_named
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.load_plan import Wish, consider, frontier, recommend
from headrace_worker.perf.model_shape import BUILT_IN_MODELS
from headrace_worker.perf.plan import PlanRequest
from headrace_worker.perf.plan_command import main
from headrace_worker.perf.precision import kv_precision, weight_precision
from headrace_worker.perf.resources import Resource

REQUEST = PlanRequest(
    BUILT_IN_MODELS["llama-3.1-70b"], weight_precision("fp8"), kv_precision("bf16"), card_named("h100-80gib")
)


def test_one_fp8_h100_fits_but_misses_420_ms_for_4096_tokens() -> None:
    one = consider(REQUEST, Layout(1), Wish(4096, 256, ttft_s=0.42))
    assert one.fits and one.best is None
    assert one.binding is Resource.TENSOR_COMPUTE
    assert "fits in memory but misses the TTFT budget even when idle" in one.why_not
    assert one.prefill_s == pytest.approx(0.52, rel=0.1)
    assert consider(REQUEST, Layout(2), Wish(4096, 256, ttft_s=0.42)).best is not None


def test_the_cheapest_layout_comes_first_and_keeps_its_budgets() -> None:
    wish = Wish(4096, 256, ttft_s=0.42, inter_token_s=0.05, rps=10, price_per_gpu_hour=2.5)
    options = recommend(REQUEST, wish)
    good = [option for option in options if option.best is not None]
    assert options[: len(good)] == tuple(good), "those that keep it come before those that do not"
    assert all(option.best.meets(wish) for option in good if option.best)
    assert good[0].num_devices == min(option.num_devices for option in good)
    assert good[0].best is not None
    per_replica = good[0].best.tokens_per_s / wish.output_tokens
    assert (good[0].num_replicas - 1) * per_replica < 10 <= good[0].num_replicas * per_replica
    cost = good[0].best.cost_per_million(wish)
    assert cost == pytest.approx(2.5 / 3600 / good[0].best.tokens_per_s_per_gpu * 1e6)


def test_what_does_not_fit_says_so() -> None:
    big = PlanRequest(REQUEST.shape, weight_precision("bf16"), REQUEST.kv, REQUEST.card)
    one = consider(big, Layout(1), Wish(1024, 256))
    assert not one.fits
    assert one.binding is Resource.HBM_CAPACITY
    assert one.why_not.startswith("does not fit")


def test_no_point_of_the_frontier_is_beaten() -> None:
    options = recommend(REQUEST, Wish(1024, 1024))
    edge = [point for _, point in frontier(options)]
    for faster, fuller in pairwise(edge):
        assert faster.tokens_per_s_per_user > fuller.tokens_per_s_per_user
        assert faster.tokens_per_s_per_gpu < fuller.tokens_per_s_per_gpu
    for option in options:
        for point in option.points:
            assert any(
                each.tokens_per_s_per_user >= point.tokens_per_s_per_user
                and each.tokens_per_s_per_gpu >= point.tokens_per_s_per_gpu
                for each in edge
            )


def test_a_pipeline_brings_throughput_and_a_tensor_group_short_gaps() -> None:
    """70 B in FP8 on four H100: the more stages, the more tokens in all; the more ranks, the sooner the next one."""
    wish = Wish(4096, 256, ttft_s=0.42)
    wide, mixed, deep = (consider(REQUEST, layout, wish).best for layout in (Layout(4), Layout(2, 2), Layout(1, 4)))
    assert wide is not None and mixed is not None and deep is not None
    assert wide.tokens_per_s < mixed.tokens_per_s < deep.tokens_per_s
    assert wide.tpot_s < mixed.tpot_s < deep.tpot_s
    assert recommend(REQUEST, wish)[0].layout.pipeline > 1
    hasty = Wish(4096, 256, ttft_s=0.42, inter_token_s=0.045)
    assert recommend(REQUEST, hasty)[0].layout.pipeline == 1


@pytest.mark.parametrize(
    ("change", "field"), [({"prompt_tokens": 0}, "prompt_tokens"), ({"rps": -1.0}, "rps"), ({"ttft_s": 0.0}, "ttft_s")]
)
def test_a_wish_that_makes_no_sense_names_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(PerfError) as caught:
        Wish(**{"prompt_tokens": 1, "output_tokens": 1, **change})
    assert caught.value.field == field


def test_the_command_gives_json_a_table_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "llama-3.1-70b", "--precision", "fp8", "--prompt-tokens", "4096", "--ttft-ms", "420"]
    words += ["--rps", "10", "--price-per-gpu-hour", "2.5"]
    assert main([*words, "--json"]) == 0
    load = json.loads(capsys.readouterr().out)["load"]
    assert load["layout"]["fits"] and not load["layout"]["meets_slo"]
    assert load["recommendation"]["meets_slo"]
    assert load["recommendation"]["at"]["cost_per_million_useful_tokens"] > 0
    assert len(load["frontier"]) > 3
    target = tmp_path / "plan.html"
    assert main([*words, "--html", str(target)]) == 0
    shown = capsys.readouterr().out
    assert "cheapest: " in shown
    assert "note: tp1 fits in memory but misses the TTFT budget" in shown
    assert target.read_text().count("<svg") == 2
