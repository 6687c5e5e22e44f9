"""Every interleaving of events and faults to depth 12: one terminal, one settlement, no leak, nothing after the end."""

from __future__ import annotations

import gc

import pytest

from headrace_gateway.lifecycle import Terms

from .explore import explore


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


@pytest.mark.slow
def test_every_interleaving_of_two_choices_to_depth_12() -> None:
    walk(Terms(2, 10, total_s=60.0), depth=12)
