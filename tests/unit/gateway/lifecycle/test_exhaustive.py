"""Every interleaving of events and faults to depth 12: one terminal, one settlement, no leak, nothing after the end."""

from __future__ import annotations

import gc
from random import Random

import pytest

from headrace_gateway.lifecycle import Response, Terms

from .explore import World, explore, must_end, possible
from .observer import Observer

ENDINGS = {
    "ClientGone",
    "GatewayStops",
    "AdmitRefused",
    "RouteRefused",
    "AttemptRefused",
    "PolicyLost",
    "DecodeFailed",
    "Tick",
}


def walk(terms: Terms, depth: int) -> None:
    gc.disable()  # the walk makes no cycles, and collecting its many live objects would be half its time
    try:
        num_states, num_transitions = explore(terms, depth)
    finally:
        gc.enable()
    assert num_states > 1_000 and num_transitions > 10 * num_states


def test_every_interleaving_to_depth_12() -> None:
    walk(Terms(1, 10, total_s=60.0), depth=12)


def test_every_interleaving_of_two_choices_to_depth_10() -> None:
    walk(Terms(2, 10, total_s=60.0), depth=10)


@pytest.mark.parametrize("num_choices", [1, 2, 5])
def test_long_walks_at_random(num_choices: int) -> None:
    """Past depth 12, with full counts: the balance of the books is asserted on every settlement."""
    random = Random(num_choices)
    num_ended = 0
    for _ in range(200):
        world = World(Response(Terms(num_choices, 10, total_s=60.0), 0.0), Observer(num_choices), 0.0)
        for _ in range(40):
            # Endings are rare among what may happen, so that walks grow long.
            events = list(possible(world))
            calm = [event for event in events if type(event).__name__ not in ENDINGS]
            world.take(random.choice(calm if calm and random.random() < 0.8 else events))
        must_end(world)
        num_ended += world.response.ended
    assert num_ended > 20


@pytest.mark.slow
def test_every_interleaving_of_two_choices_to_depth_12() -> None:
    walk(Terms(2, 10, total_s=60.0), depth=12)
