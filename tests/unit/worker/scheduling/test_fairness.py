"""Virtual token counters: shares by weight, no credit for idling, bounded memory."""

from __future__ import annotations

from collections import Counter

from headrace_worker.scheduling.fairness import VirtualTokens
from tests.unit.worker.scheduling.fakes import Driver, make_limits


def serve(tokens: VirtualTokens, weights: dict[str, float], num_turns: int) -> Counter[str]:
    served: Counter[str] = Counter()
    for _ in range(num_turns):
        key = min(weights, key=lambda name: tokens[name])
        tokens.charge(key, 10, weights[key])
        served[key] += 1
    return served


def test_shares_follow_the_weights() -> None:
    tokens = VirtualTokens()
    tokens.enter("light")
    tokens.enter("heavy")
    served = serve(tokens, {"light": 1.0, "heavy": 3.0}, 400)
    assert served == {"light": 100, "heavy": 300}


def test_a_key_that_idled_starts_with_those_that_wait() -> None:
    tokens = VirtualTokens()
    tokens.enter("busy")
    tokens.charge("busy", 1000, 1.0)
    tokens.enter("late")
    assert tokens["late"] == 1000


def test_in_an_empty_room_a_newcomer_starts_where_the_last_one_is() -> None:
    tokens = VirtualTokens()
    tokens.enter("busy")
    tokens.leave("busy")
    tokens.charge("busy", 1000, 1.0)
    tokens.enter("late")
    assert tokens["late"] == 1000


def test_a_key_that_was_served_more_keeps_its_debt() -> None:
    tokens = VirtualTokens()
    tokens.enter("other")
    tokens.enter("greedy")
    tokens.charge("greedy", 1000, 1.0)
    tokens.leave("greedy")
    tokens.enter("greedy")
    assert tokens["greedy"] == 1000


def test_keys_that_left_are_forgotten() -> None:
    tokens = VirtualTokens()
    for index in range(10_000):
        tokens.enter(str(index))
        tokens.charge(str(index), 1, 1.0)
        tokens.leave(str(index))
    assert len(tokens._counters) < 3000


def test_a_tenant_with_many_requests_does_not_starve_one_with_few() -> None:
    """Both backlogged, one twenty times deeper: while both wait, they get the same number of tokens."""
    driver = Driver(make_limits(num_pages=8, max_waiting=200, max_running=2))
    many = [driver.submit(32, 16, fair_key="many") for _ in range(80)]
    few = [driver.submit(32, 16, fair_key="few") for _ in range(8)]
    while not all(outcome.is_over for outcome in few):
        driver.step()
    assert sum(outcome.is_over for outcome in many) <= 10
    driver.run()


def test_a_tenant_with_twice_the_weight_gets_twice_the_tokens() -> None:
    driver = Driver(make_limits(num_pages=8, max_waiting=400, max_running=2))
    for _ in range(60):
        driver.submit(32, 16, fair_key="single")
        driver.submit(32, 16, fair_key="double", weight=2.0)
    while sum(outcome.is_over for outcome in driver.outcomes.values()) < 60:
        driver.step()
    over = Counter(outcome.request.fair_key for outcome in driver.outcomes.values() if outcome.is_over)
    assert 38 <= over["double"] <= 42


def test_what_is_charged_is_what_was_computed() -> None:
    """A prompt token once unless it was cached, an output token twice, all by the weight."""
    driver = Driver(make_limits())
    driver.submit([5] * 40, 4, fair_key="first")
    driver.run()
    assert driver.scheduler.room.fairness["first"] == 40 + 2 * 4
    driver.submit([5] * 40, 4, fair_key="second", weight=2.0)
    driver.run()
    # It starts where the last one is.
    assert driver.scheduler.room.fairness["second"] == 48 + (8 + 2 * 4) / 2


def test_a_key_that_comes_and_goes_leaves_one_entry() -> None:
    """One entry each time would make every turn cost as much as all before it."""
    tokens = VirtualTokens()
    tokens.enter("other")
    for _ in range(200):
        tokens.enter("busy")
        tokens.charge("busy", 10, 1.0)
        tokens.charge("other", 10, 1.0)
        tokens.leave("busy")
    assert len(tokens._heap) <= 2


def test_who_idled_while_only_others_were_charged_gets_no_credit() -> None:
    tokens = VirtualTokens()
    tokens.enter("idle")
    tokens.enter("busy")
    tokens.leave("idle")
    tokens.charge("busy", 1000, 1.0)
    tokens.enter("idle")
    assert tokens["idle"] == tokens["busy"] == 1000
