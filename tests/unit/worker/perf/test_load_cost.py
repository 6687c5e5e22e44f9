"""What a load costs and what its users see at it, in figures that the simulator finds as well."""

import pytest

from headrace_worker.perf.cards import card_named
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.load_plan import Wish, consider, recommend
from headrace_worker.perf.model_shape import BUILT_IN_MODELS
from headrace_worker.perf.plan import PlanRequest
from headrace_worker.perf.precision import kv_precision, weight_precision

REQUEST = PlanRequest(
    BUILT_IN_MODELS["llama-3.1-70b"], weight_precision("fp8"), kv_precision("bf16"), card_named("h100-80gib")
)


def test_a_load_costs_what_all_devices_cost_however_idle() -> None:
    """A tenth of a request per second keeps a card busy for a thirtieth of its time, and the card is paid for whole."""
    wish = Wish(640, 256, ttft_s=0.42, rps=0.1, price_per_gpu_hour=2.5)
    cheapest = recommend(REQUEST, wish)[0]
    assert cheapest.num_devices == 1
    assert cheapest.cost_per_hour(wish) == 2.5
    assert cheapest.cost_per_million(wish) == pytest.approx(2.5 / (0.1 * 256 * 3600) * 1e6)
    assert cheapest.best is not None
    assert cheapest.busy(wish) == pytest.approx(0.1 * 256 / cheapest.best.tokens_per_s)


def test_a_rate_is_shared_by_so_many_users_as_bring_it() -> None:
    """The simulator, at the same load (2 x tp2, 12 requests per second of 640 + 256): TTFT 74 ms, 28 ms a token."""
    wish = Wish(640, 256, ttft_s=0.42, rps=12, price_per_gpu_hour=2.5)
    pair = consider(REQUEST, Layout(2), wish)
    assert pair.num_replicas == 2 and pair.at_load is not None and pair.best is not None
    assert pair.at_load.ttft_s == pytest.approx(0.074, rel=0.2)
    assert pair.at_load.tpot_s == pytest.approx(0.028, rel=0.1)
    assert pair.at_load.concurrency < pair.best.concurrency
    assert pair.at_load.tokens_per_s >= 12 * 256 / 2
    without = consider(REQUEST, Layout(2), Wish(640, 256, ttft_s=0.42))
    assert without.at_load == without.best


def test_of_as_many_devices_those_with_room_left_come_first() -> None:
    wish = Wish(640, 256, ttft_s=0.42, rps=12)
    options = [option for option in recommend(REQUEST, wish) if option.best is not None]
    same = [option.most_tokens_per_s for option in options if option.num_devices == options[0].num_devices]
    assert same == sorted(same, reverse=True)
    equal = [option for option in options if option.num_devices == 4]
    assert len(equal) > 1 and equal[0].most_tokens_per_s > equal[-1].most_tokens_per_s


def test_a_request_longer_than_the_model_is_refused_by_name() -> None:
    with pytest.raises(PerfError, match="131072 positions") as caught:
        recommend(REQUEST, Wish(100_000, 40_000))
    assert caught.value.field == "prompt_tokens"
