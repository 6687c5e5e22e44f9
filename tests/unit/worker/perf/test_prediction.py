"""Closed-loop arithmetic against a step-by-step replay of the same loop."""

import pytest

from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.cards import card_named
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.model_shape import BUILT_IN_MODELS
from headrace_worker.perf.precision import kv_precision, weight_precision
from headrace_worker.perf.prediction import ClosedLoop, burst_ttft_s, predict_closed_loop, prefill_time_s
from headrace_worker.perf.step import Roofline, StepLoad

ROOFLINE = Roofline(
    BUILT_IN_MODELS["llama-3.1-8b"], weight_precision("bf16"), kv_precision("bf16"), card_named("h100-80gib"), Layout()
)


def replayed_tpot_s(load: ClosedLoop, num_requests: int) -> float:
    """Staggered users, one prompt per step at most, contexts and outputs counted token by token."""
    outputs = [load.num_output_tokens * user // load.concurrency for user in range(load.concurrency)]
    waiting: list[int] = []
    seconds = tokens = finished = 0.0
    while finished < num_requests:
        entering = waiting.pop(0) if waiting else None
        rows = [user for user in range(load.concurrency) if user not in waiting and user != entering]
        context = sum(load.num_prompt_tokens + outputs[user] for user in rows)
        chunks = () if entering is None else (Prefill(load.num_prompt_tokens),)
        step_s = ROOFLINE.step_time_s(StepLoad(chunks, len(rows), context))
        seconds, tokens = seconds + step_s * len(rows), tokens + len(rows)
        if entering is not None:
            outputs[entering] = 0
        for user in rows:
            outputs[user] += 1
            if outputs[user] >= load.num_output_tokens:
                waiting.append(user)
                finished += 1
    return seconds / tokens


@pytest.mark.parametrize("load", [ClosedLoop(512, 256, 1), ClosedLoop(512, 256, 8), ClosedLoop(4000, 200, 16)])
def test_tpot_is_that_of_the_replayed_loop(load: ClosedLoop) -> None:
    predicted = predict_closed_loop(ROOFLINE, load, max_running=100)
    assert predicted.tpot_s == pytest.approx(replayed_tpot_s(load, 6 * load.concurrency), rel=0.03)


def test_one_user_waits_for_nobody() -> None:
    predicted = predict_closed_loop(ROOFLINE, ClosedLoop(1000, 100, 1), max_running=10)
    assert predicted.ttft_s == pytest.approx(ROOFLINE.step_time_s(StepLoad((Prefill(1000),))))


def test_users_without_a_place_wait_and_do_not_slow_the_others() -> None:
    within = predict_closed_loop(ROOFLINE, ClosedLoop(1000, 100, 10), max_running=10)
    beyond = predict_closed_loop(ROOFLINE, ClosedLoop(1000, 100, 40), max_running=10)
    assert beyond.tpot_s == within.tpot_s
    assert beyond.output_tokens_per_s == within.output_tokens_per_s
    assert beyond.ttft_s > 3 * (within.ttft_s + 99 * within.tpot_s)


def test_throughput_obeys_littles_law() -> None:
    load = ClosedLoop(1000, 100, 40)
    predicted = predict_closed_loop(ROOFLINE, load, max_running=10)
    cycle_s = predicted.ttft_s + (load.num_output_tokens - 1) * predicted.tpot_s
    assert predicted.output_tokens_per_s * cycle_s == pytest.approx(load.concurrency * load.num_output_tokens)


def test_throughput_rises_with_users_and_so_does_tpot() -> None:
    points = [
        predict_closed_loop(ROOFLINE, ClosedLoop(500, 500, users), max_running=512) for users in (1, 4, 16, 64, 256)
    ]
    assert [point.output_tokens_per_s for point in points] == sorted(point.output_tokens_per_s for point in points)
    assert [point.tpot_s for point in points] == sorted(point.tpot_s for point in points)


def test_a_burst_of_one_is_one_prefill() -> None:
    assert burst_ttft_s(ROOFLINE, 1000, 1) == pytest.approx(ROOFLINE.step_time_s(StepLoad((Prefill(1000),))))


def test_a_burst_is_served_in_order_and_chunk_by_chunk() -> None:
    """Three prompts of 1,500 in chunks of 2,000: 1,500 + 500, then 1,000 + 1,000, then 500."""
    first = ROOFLINE.step_time_s(StepLoad((Prefill(1500), Prefill(500))))
    second = first + ROOFLINE.step_time_s(StepLoad((Prefill(1000, 500), Prefill(1000)), 1, 1500))
    third = second + ROOFLINE.step_time_s(StepLoad((Prefill(500, 1000),), 2, 3000))
    assert burst_ttft_s(ROOFLINE, 1500, 3, chunk_tokens=2000) == pytest.approx((first + second + third) / 3)


@pytest.mark.parametrize("field", ["num_prompt_tokens", "num_output_tokens", "concurrency"])
def test_an_empty_load_is_refused_by_field(field: str) -> None:
    values = {"num_prompt_tokens": 10, "num_output_tokens": 10, "concurrency": 1, field: 0}
    with pytest.raises(PerfError, match="at least 1") as caught:
        ClosedLoop(**values)
    assert caught.value.field == field


def test_the_stages_of_a_pipeline_share_the_sequences() -> None:
    """As many steps are in flight as there are stages, each with an equal part of the rows."""
    pipeline = Roofline(ROOFLINE.shape, ROOFLINE.weights, ROOFLINE.kv, ROOFLINE.card, Layout(pipeline=2))
    load = ClosedLoop(16, 2000, 64)
    predicted = predict_closed_loop(pipeline, load, max_running=100)
    stages_s = pipeline.stage_times_s(StepLoad((), 32, 32 * load.mean_context))
    assert predicted.tpot_s == pytest.approx(2 * max(stages_s), rel=0.02)
    assert predicted.tpot_s < predict_closed_loop(ROOFLINE, load, max_running=100).tpot_s


def piped(num_stages: int) -> Roofline:
    return Roofline(ROOFLINE.shape, ROOFLINE.weights, ROOFLINE.kv, ROOFLINE.card, Layout(pipeline=num_stages))


@pytest.mark.parametrize("num_stages", [2, 4])
def test_the_chunks_of_a_prompt_follow_each_other_through_the_stages(num_stages: int) -> None:
    """Eight of them take (8 + p - 1) / 8 of one stage's share of the work; keys before a chunk make the last longer."""
    pipeline = piped(num_stages)
    serial_s = sum(pipeline.step_time_s(StepLoad((Prefill(1024, done),))) for done in range(0, 8192, 1024))
    found_s = prefill_time_s(pipeline, 8192)
    assert found_s == pytest.approx(serial_s * (8 + num_stages - 1) / (8 * num_stages), rel=0.05)
    assert predict_closed_loop(pipeline, ClosedLoop(8192, 100, 1), max_running=10).ttft_s == found_s
    assert burst_ttft_s(pipeline, 8192, 1) == pytest.approx(found_s)


def test_prompts_that_follow_each_other_fill_the_pipeline_once() -> None:
    """A busy pipeline gives a prompt the time of its slowest stage, an idle one that of all of them."""
    pipeline, one = piped(4), piped(1)
    load = ClosedLoop(1024, 8, 64)
    rate = predict_closed_loop(pipeline, load, max_running=100).output_tokens_per_s
    assert 3 < rate / predict_closed_loop(one, load, max_running=100).output_tokens_per_s < 4
    alone = [predict_closed_loop(each, ClosedLoop(1024, 8, 1), 100).output_tokens_per_s for each in (pipeline, one)]
    assert alone[0] == pytest.approx(alone[1], rel=0.02)
