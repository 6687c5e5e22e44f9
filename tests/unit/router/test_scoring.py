"""The choice: compatibility, then readiness, then load; deterministic given state and draw."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_router.deadlines import Budget
from headrace_router.prediction import UNKNOWN, StepCost
from headrace_router.scoring import NEAR, Ask, Candidate, Choice, View, choose, num_new_tokens

ASK = Ask(model="m", slo_class="standard", num_prompt_tokens=100, max_output_tokens=28)
IDLE = View(id="w-1", epoch="e1", model="m", revision="1", grammar=True, logprobs=True, max_context_tokens=8192)


def view(replica_id: str = "w-1", **facts: Any) -> View:
    return IDLE._replace(id=replica_id, **facts)


COST = StepCost(step=0.005, tokens=5e-5, decode_rows=1e-4, context_tokens=1e-7, attention_pairs=1e-9)


def score_of(one: View) -> Candidate:
    (candidate,) = choose(ASK, [one], 0.0).candidates
    return candidate


def picked(choice: Choice) -> str:
    assert choice.picked is not None
    return choice.picked.view.id


@pytest.mark.parametrize(
    ("ask", "facts", "why"),
    [
        (ASK, {"model": "other"}, "incompatible"),
        (replace(ASK, revisions={"2"}), {}, "incompatible"),
        (ASK, {"role": "prefill"}, "incompatible"),
        (ASK, {"classes": ("batch",)}, "incompatible"),
        (ASK, {"connected": False}, "not_ready"),
        (ASK, {"state": "draining"}, "not_ready"),
        (ASK, {"state": "degraded"}, "not_ready"),
        (replace(ASK, grammar=True), {"grammar": False}, "features"),
        (replace(ASK, logprobs=True), {"logprobs": False}, "features"),
        (ASK, {"max_context_tokens": 127}, "context"),
        (replace(ASK, excluded=frozenset({"w-1"})), {}, "excluded"),
        (ASK, {"breaker_open": True}, "breaker"),
    ],
)
def test_what_does_not_fit_is_not_picked_and_says_why(ask: Ask, facts: dict[str, Any], why: str) -> None:
    choice = choose(ask, [view(**facts)], 0.0)
    assert choice.picked is None
    assert choice.candidates[0].why == why
    assert choice.candidates[0].detail


@pytest.mark.parametrize(
    ("ask", "facts"),
    [
        (replace(ASK, revisions={"2", "1"}), {}),
        (ASK, {"classes": ("standard", "batch")}),
        (ASK, {"max_context_tokens": 128}),
        (ASK, {"max_context_tokens": 0}),
        (replace(ASK, excluded=frozenset({"w-2"})), {}),
    ],
)
def test_what_just_fits_is_picked(ask: Ask, facts: dict[str, Any]) -> None:
    assert picked(choose(ask, [view(**facts)], 0.0)) == "w-1"


def test_a_cache_miss_goes_to_the_least_loaded() -> None:
    """B81: loads 20 and 0, 100 requests that do not end: the first 20 go to W2, and both end at 60."""
    loads = {"w-1": 20, "w-2": 0}
    picks = []
    for i in range(100):
        name = picked(choose(ASK, [view(w, num_running=load) for w, load in loads.items()], (i * 0.37) % 1))
        loads[name] += 1
        picks.append(name)
    assert picks[:20] == ["w-2"] * 20
    assert loads == {"w-1": 60, "w-2": 60}


@pytest.mark.parametrize("facts", [{"num_waiting": 2}, {"num_unseen": 2}, {"num_running": 2}])
def test_waiting_and_own_decisions_count_as_load(facts: dict[str, int]) -> None:
    views = [view("w-1", **facts), view("w-2", num_running=1)]
    assert {picked(choose(ASK, views, draw / 10)) for draw in range(10)} == {"w-2"}


def test_among_equals_the_draw_decides_evenly() -> None:
    views = [view("w-1"), view("w-2"), view("w-3", num_queued_tokens=100_000)]
    picks = Counter(picked(choose(ASK, views, i / 100)) for i in range(100))
    assert picks == {"w-1": 50, "w-2": 50}


def test_of_two_drawn_near_ties_the_less_loaded_is_taken() -> None:
    """All are equal but for what they got lately: the fullest is never taken, the emptiest whenever it is drawn."""
    views = [view(f"w-{i}", num_recent_tokens=float(i)) for i in range(4)]
    picks = Counter(picked(choose(ASK, views, (i + 0.5) / 1200)) for i in range(1200))
    assert picks == {"w-0": 600, "w-1": 400, "w-2": 200}


POOL = IDLE._replace(num_pool_tokens=160_000, cost=COST)
LONG = replace(ASK, num_prompt_tokens=4096, max_output_tokens=128, budget=Budget(ttft_s=0.7, max_queue_s=5))


@pytest.mark.parametrize(("loads", "warm"), [((8, 0, 0, 0), False), ((1, 1, 1, 1), True)])
@pytest.mark.parametrize("base", [IDLE, POOL], ids=["nothing known", "coefficients known"])
def test_a_popular_prefix_does_not_pin_all_traffic_to_one_replica(
    loads: tuple[int, ...], warm: bool, base: View
) -> None:
    """B82: W1 holds 3,072 of 4,096 tokens."""
    hits = (3072, 0, 0, 0)
    views = [base._replace(id=f"w-{i}", num_running=loads[i], num_hit_tokens=hits[i]) for i in range(4)]
    choices = [choose(LONG, views, draw / 10) for draw in range(10)]
    assert {picked(choice) == "w-0" for choice in choices} == {warm}
    assert [each.id for each in choices[0].filtered("spread")] == ([] if warm else ["w-0"])


def test_a_hot_prefix_is_spread_however_hot_it_is() -> None:
    """100 requests of a prefix that one of four holds, none of which ends: nobody has over a quarter more than a
    quarter, and two."""
    loads = [0, 0, 0, 0]
    for i in range(100):
        views = [POOL._replace(id=f"w-{w}", num_unseen=load) for w, load in enumerate(loads)]
        views[0] = views[0]._replace(num_hit_tokens=3072)
        loads[int(picked(choose(LONG, views, i * 0.37 % 1))[-1])] += 1
        assert max(loads) <= 1.25 * (i + 1) / 4 + 2
    assert loads[0] == max(loads)


def test_the_longer_prefix_wins_and_prompts_ahead_outweigh_it() -> None:
    half, more = (POOL._replace(id=name, num_hit_tokens=n) for name, n in (("half", 2048), ("more", 3072)))
    assert picked(choose(LONG, [half, more], 0.0)) == "more"
    assert picked(choose(LONG, [half, more._replace(num_queued_tokens=4096)], 0.0)) == "half"


def test_a_full_hit_still_computes_one_token() -> None:
    assert num_new_tokens(LONG, view(num_hit_tokens=4096)) == 1
    assert num_new_tokens(LONG, view(num_hit_tokens=4080)) == 16


def test_memory_promised_counts_against_a_replica() -> None:
    views = [POOL._replace(id="full", num_promised_tokens=150_000), POOL._replace(id="free")]
    assert {picked(choose(LONG, views, draw / 10)) for draw in range(10)} == {"free"}


def test_a_slower_inter_token_time_counts_against_a_replica() -> None:
    views = [POOL._replace(id="busy", num_held_tokens=150_000), POOL._replace(id="free")]
    assert {picked(choose(LONG, views, draw / 10)) for draw in range(10)} == {"free"}


def test_a_session_goes_home_while_home_is_not_much_worse() -> None:
    ask = replace(LONG, session="tenant/s-1")
    views = [POOL._replace(id=f"w-{i}") for i in range(5)]
    (home,) = {picked(choose(ask, views, draw / 10)) for draw in range(10)}
    assert picked(choose(ask, views[::-1], 0.3)) == home
    busy = [each._replace(num_queued_tokens=4096 * (each.id == home)) for each in views]
    assert picked(choose(ask, busy, 0.3)) != home
    homes = {picked(choose(replace(LONG, session=f"s-{i}"), views, 0.5)) for i in range(60)}
    assert homes == {each.id for each in views}


def test_when_a_replica_leaves_only_its_sessions_move() -> None:
    views = [POOL._replace(id=f"w-{i}") for i in range(5)]
    asks = [replace(LONG, session=f"s-{i}") for i in range(40)]
    before = [picked(choose(ask, views, 0.5)) for ask in asks]
    after = [picked(choose(ask, views[1:], 0.5)) for ask in asks]
    assert all(old in (new, "w-0") for old, new in zip(before, after, strict=True))


def test_a_larger_replica_may_carry_more() -> None:
    large, small = POOL._replace(id="large", num_pool_tokens=640_000), POOL._replace(id="small")
    views = [large._replace(num_running=12), small._replace(num_running=2)]
    assert not choose(LONG, views, 0.0).filtered("spread")
    assert choose(LONG, [views[0]._replace(num_pool_tokens=160_000), views[1]], 0.0).filtered("spread")


def test_a_full_waiting_room_is_passed_over() -> None:
    views = [view("w-1", num_waiting=4, max_waiting=4), view("w-2", num_waiting=3, max_waiting=4)]
    assert {picked(choose(ASK, views, draw / 10)) for draw in range(10)} == {"w-2"}


def test_of_two_the_one_with_a_fresh_report_is_preferred() -> None:
    """B85: also when the stale one looks less loaded."""
    views = [view("w-1", fresh=False, num_running=0), view("w-2", num_running=9)]
    assert picked(choose(ASK, views, 0.0)) == "w-2"


def test_alone_a_stale_report_does_not_make_a_replica_unavailable() -> None:
    """B85: nor does it count as saturated; what counts is what this router sent there."""
    stale = view(fresh=False, num_running=10_000, num_queued_tokens=10**9, num_promised_tokens=10**9, num_in_flight=3)
    choice = choose(ASK, [stale], 0.0)
    assert picked(choice) == "w-1"
    assert choice.picked is not None
    assert choice.picked.parts == score_of(view(num_running=3)).parts


_views = st.builds(
    View,
    id=st.uuids().map(str),
    epoch=st.just("e"),
    model=st.sampled_from(["m", "other"]),
    revision=st.just("1"),
    state=st.sampled_from(["ready", "draining", "loading"]),
    connected=st.booleans(),
    breaker_open=st.booleans(),
    fresh=st.booleans(),
    num_running=st.integers(0, 5),
    num_in_flight=st.integers(0, 5),
    num_queued_tokens=st.integers(0, 10_000),
    num_hit_tokens=st.integers(0, 200),
    num_pool_tokens=st.sampled_from([0, 10_000, 40_000]),
    cost=st.sampled_from([UNKNOWN, COST]),
)


@given(st.lists(_views, max_size=6), st.floats(0, 1, exclude_max=True))
def test_the_best_that_fits_is_picked_whenever_one_fits(views: list[View], draw: float) -> None:
    choice = choose(ASK, views, draw)
    again = choose(ASK, views, draw)
    assert (choice.picked, choice.candidates) == (again.picked, again.candidates)
    assert choice.picked is None or choice.picked in choice.candidates
    assert len(choice.candidates) == len(views)
    fit = [c for c in choice.candidates if not c.why]
    assert (choice.picked is not None) == bool(fit) == bool(choice.scored)
    assert all(c.score == pytest.approx(sum(c.terms.values())) for c in choice.candidates)
    if choice.picked is not None:
        best = choice.picked
        assert best.view.model == "m"
        assert (best.view.connected, best.view.state, best.view.breaker_open) == (True, "ready", False)
        assert all((not best.view.fresh, best.score - NEAR) <= (not c.view.fresh, c.score) for c in fit)
