"""The Triton backend of the attention port, under the interpreter, against plain attention."""

import pytest
import torch

from headrace_worker.attention.triton_paged import TritonPagedAttention
from tests.unit.worker.attention.steps import make_pages, make_story, plain_attention, run_step

BACKEND = TritonPagedAttention()


@pytest.mark.parametrize("window", [None, 5])
def test_a_mixed_step_equals_plain_attention(window: int | None) -> None:
    """A whole prefill, a later chunk and two decodes share a step; pages lie in no order and were NaN."""
    kv = make_pages(num_pages=20, page_size=4, fill=float("nan"))
    whole = make_story(11, [3, 17, 5], seed=1)
    chunked = make_story(21, [2, 19, 7, 11, 1, 13], seed=2)
    old = make_story(9, [4, 18, 6], seed=3)
    young = make_story(1, [8], seed=4)
    run_step(BACKEND, kv, [(chunked, 0, 6), (old, 0, 8)], window)
    outs = run_step(BACKEND, kv, [(old, 8, 9), (whole, 0, 11), (chunked, 6, 21), (young, 0, 1)], window, num_padding=3)
    for out, (story, start) in zip(outs, [(old, 8), (whole, 0), (chunked, 6), (young, 0)], strict=True):
        torch.testing.assert_close(out, plain_attention(story, window)[start:], rtol=1e-4, atol=1e-5)


def test_a_step_of_decodes_alone() -> None:
    kv = make_pages(num_pages=20, page_size=16, fill=float("nan"))
    stories = [make_story(length, [first, first + 1], seed=first) for first, length in ((1, 20), (3, 32), (5, 1))]
    run_step(BACKEND, kv, [(story, 0, len(story.q_LND) - 1) for story in stories if len(story.q_LND) > 1])
    outs = run_step(BACKEND, kv, [(story, len(story.q_LND) - 1, len(story.q_LND)) for story in stories])
    for out, story in zip(outs, stories, strict=True):
        torch.testing.assert_close(out, plain_attention(story)[-1:], rtol=1e-4, atol=1e-5)


def test_a_poisoned_sequence_harms_no_neighbour() -> None:
    kv = make_pages(num_pages=8, page_size=8)
    sound, poisoned = make_story(7, [1], seed=6), make_story(12, [2, 3], seed=7)
    poisoned.k_LKD[3] = poisoned.v_LKD[3] = float("nan")
    ill, well = run_step(BACKEND, kv, [(poisoned, 0, 12), (sound, 0, 7)])
    assert ill[3:].isnan().all()
    torch.testing.assert_close(well, plain_attention(sound), rtol=1e-4, atol=1e-5)
