"""The choice: compatibility, then readiness, then load; deterministic given state and draw."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_router.scoring import Ask, Choice, View, choose

ASK = Ask(model="m", slo_class="standard", num_prompt_tokens=100, max_output_tokens=28)
IDLE = View(id="w-1", epoch="e1", model="m", revision="1", grammar=True, logprobs=True, max_context_tokens=8192)


def view(replica_id: str = "w-1", **facts: Any) -> View:
    return IDLE._replace(id=replica_id, **facts)


def picked(choice: Choice) -> str:
    assert choice.picked is not None
    return choice.picked.view.id


@pytest.mark.parametrize(
    ("ask", "facts", "why"),
    [
        (ASK, {"model": "other"}, "incompatible"),
        (replace(ASK, revision="2"), {}, "incompatible"),
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
        (replace(ASK, revision="1"), {}),
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


def test_waiting_and_own_decisions_count_as_load() -> None:
    views = [view("w-1", num_waiting=2), view("w-2", num_unseen=2), view("w-3", num_running=1)]
    assert picked(choose(ASK, views, 0.5)) == "w-3"


def test_among_equals_the_draw_decides_evenly() -> None:
    views = [view("w-1"), view("w-2"), view("w-3", num_running=5)]
    picks = Counter(picked(choose(ASK, views, i / 100)) for i in range(100))
    assert picks == {"w-1": 50, "w-2": 50}


def test_of_two_the_one_with_a_fresh_report_is_preferred() -> None:
    """B85: also when the stale one looks less loaded."""
    views = [view("w-1", fresh=False, num_running=0), view("w-2", num_running=9)]
    assert picked(choose(ASK, views, 0.0)) == "w-2"


def test_alone_a_stale_report_does_not_make_a_replica_unavailable() -> None:
    """B85: nor does it count as saturated; what counts is what this router sent there."""
    choice = choose(ASK, [view(fresh=False, num_running=10_000, num_in_flight=3)], 0.0)
    assert picked(choice) == "w-1"
    assert choice.picked is not None
    assert (choice.picked.score, choice.picked.terms) == (3.0, {"in_flight": 3.0})


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
)


@given(st.lists(_views, max_size=6), st.floats(0, 1, exclude_max=True))
def test_the_best_that_fits_is_picked_whenever_one_fits(views: list[View], draw: float) -> None:
    choice = choose(ASK, views, draw)
    assert choice == choose(ASK, views, draw)
    assert len(choice.candidates) == len(views)
    fit = [c for c in choice.candidates if not c.why]
    assert (choice.picked is not None) == bool(fit)
    if choice.picked is not None:
        best = choice.picked
        assert best.view.model == "m"
        assert (best.view.connected, best.view.state, best.view.breaker_open) == (True, "ready", False)
        assert all((not best.view.fresh, best.score) <= (not c.view.fresh, c.score) for c in fit)
