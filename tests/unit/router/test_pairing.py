"""When a prompt is prefilled elsewhere, and by whom; break-even by the formula itself."""

from typing import Any

import pytest

from headrace_router.deadlines import Budget
from headrace_router.pairing import Link, break_even_tokens, interference_s, pair
from headrace_router.prediction import StepCost
from headrace_router.scoring import Ask, View

COST = StepCost(step=0.01, tokens=0.001)
LINK = Link(kv_bytes_per_token=50_000, page_tokens=16, bytes_per_s=1e9, latency_s=0.02)


def view(replica_id: str = "d", role: str = "decode", **facts: object) -> View:
    defaults: dict[str, object] = {"epoch": "e", "model": "m", "revision": "1", "role": role, "cost": COST}
    return View(id=replica_id, **(defaults | facts))  # type: ignore[arg-type]


def ask(num_prompt: int, **facts: object) -> Ask:
    return Ask(model="m", num_prompt_tokens=num_prompt, **facts)  # type: ignore[arg-type]


def test_a_prompt_that_holds_up_many_streams_is_split_and_the_record_says_so() -> None:
    chosen = pair(ask(1000), view(num_running=10), [view("p", "prefill")], LINK)
    assert chosen.prefill is not None
    assert chosen.prefill.id == "p"
    assert chosen.why.startswith("split: p prefills")


def test_what_only_adds_to_steps_counts_and_for_every_stream() -> None:
    assert interference_s(view(num_running=3), 1000, 0) == pytest.approx(3.0)
    assert interference_s(view(num_running=0), 1000, 0) == 0.0


@pytest.mark.parametrize(
    ("num_prompt", "facts", "reason"),
    [
        (1000, {"num_running": 0}, "would avoid 0 ms"),
        (17, {"num_running": 9}, "17 tokens to compute"),
        (1000, {"num_running": 9, "num_hit_tokens": 992}, "8 tokens to compute"),
        (1000, {"num_running": 9, "num_hit_tokens": 1000}, "1 tokens to compute"),
    ],
)
def test_short_mostly_cached_and_undisturbing_prompts_stay_whole(
    num_prompt: int, facts: dict[str, Any], reason: str
) -> None:
    chosen = pair(ask(num_prompt), view(**facts), [view("p", "prefill")], LINK)
    assert chosen.prefill is None
    assert reason in chosen.why


def test_a_class_that_gives_way_is_never_split() -> None:
    batch = Budget(30.0, 60.0, statistical=True)
    chosen = pair(ask(1000, budget=batch), view(num_running=10), [view("p", "prefill")], LINK)
    assert chosen.prefill is None
    assert "may be preempted" in chosen.why


@pytest.mark.parametrize(
    "facts",
    [{"state": "loading"}, {"connected": False}, {"breaker_open": True}, {"num_waiting": 4, "max_waiting": 4}],
)
def test_a_prefill_replica_that_cannot_is_passed_over(facts: dict[str, object]) -> None:
    busy = view(num_running=10)
    assert pair(ask(1000), busy, [view("p", "prefill", **facts)], LINK).prefill is None
    chosen = pair(ask(1000), busy, [view("p", "prefill", **facts), view("q", "prefill")], LINK).prefill
    assert chosen is not None
    assert chosen.id == "q"


def test_an_excluded_one_is_not_asked_again() -> None:
    chosen = pair(ask(1000, excluded=frozenset({"p"})), view(num_running=10), [view("p", "prefill")], LINK)
    assert (chosen.prefill, chosen.why) == (None, "whole: no prefill replica can take it")


def test_the_least_busy_is_asked_and_a_long_queue_there_counts_against_it() -> None:
    long, short = view("p", "prefill", num_queued_tokens=9000), view("q", "prefill", num_queued_tokens=100)
    chosen = pair(ask(1000), view(num_running=10), [long, short], LINK).prefill
    assert chosen is not None
    assert chosen.id == "q"
    assert pair(ask(1000), view(num_running=1), [long], LINK).prefill is None


def test_a_slow_link_keeps_prompts_whole() -> None:
    slow = LINK._replace(bytes_per_s=1e6)
    assert pair(ask(1000), view(num_running=10), [view("p", "prefill")], slow).prefill is None


def test_the_break_even_length_is_where_both_sides_are_equal() -> None:
    busy = view(num_running=2)
    tokens = break_even_tokens(busy, LINK)
    assert tokens is not None
    assert interference_s(busy, tokens, 0) > LINK.transfer_s(tokens - 1)
    assert interference_s(busy, tokens - 1, 0) <= LINK.transfer_s(tokens - 2)
    assert break_even_tokens(view(num_running=0), LINK) is None
