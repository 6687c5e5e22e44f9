"""The batch-invariant backend gives the same bits whatever shares the step and however the past was cut."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_worker.attention.torch_invariant import TorchInvariantAttention
from tests.unit.worker.attention.steps import make_pages, make_story, run_step

BACKEND = TorchInvariantAttention()
LENGTH = 150
PAGES = list(range(1, 11))


@pytest.fixture(autouse=True)
def _two_threads() -> None:
    torch.set_num_threads(2)


def alone(window: int | None) -> torch.Tensor:
    (out,) = run_step(BACKEND, make_pages(40, 16), [(make_story(LENGTH, PAGES, seed=1), 0, LENGTH)], window)
    return out


@pytest.mark.parametrize("window", [None, 20])
@given(cuts=st.sets(st.integers(1, LENGTH - 1), max_size=6), neighbours=st.lists(st.integers(1, 90), max_size=3))
@settings(max_examples=15)
def test_chunks_and_neighbours_do_not_change_a_bit(window: int | None, cuts: set[int], neighbours: list[int]) -> None:
    kv = make_pages(40, 16)
    story = make_story(LENGTH, PAGES, seed=1)
    pieces = []
    edges = [0, *sorted(cuts), LENGTH]
    for start, end in itertools.pairwise(edges):
        others = [
            (make_story(length, list(range(11 + 6 * place, 17 + 6 * place)), seed=length), 0, length)
            for place, length in enumerate(neighbours)
        ]
        *_, out = run_step(BACKEND, kv, [*others, (story, start, end)], window)
        pieces.append(out)
    assert torch.equal(torch.cat(pieces), alone(window))


def test_other_pages_do_not_change_a_bit() -> None:
    """A prefix hit reads the same keys from wherever they lie."""
    story = make_story(LENGTH, list(reversed(PAGES)), seed=1)
    (out,) = run_step(BACKEND, make_pages(40, 16), [(story, 0, LENGTH)])
    assert torch.equal(out, alone(None))
