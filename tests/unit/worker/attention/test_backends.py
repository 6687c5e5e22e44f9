"""Both attention backends against plain attention, over mixed steps, windows and page sizes."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headrace_worker.attention.base import AttentionBackend
from headrace_worker.attention.registry import select_attention
from headrace_worker.attention.torch_invariant import TorchInvariantAttention
from headrace_worker.attention.torch_paged import TorchPagedAttention
from headrace_worker.kernels.kv_write import KvWrite
from tests.unit.worker.attention.steps import make_pages, make_story, plain_attention, run_step

BACKENDS = [TorchPagedAttention(), TorchInvariantAttention()]
both = pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@both
@pytest.mark.parametrize("window", [None, 1, 5, 16])
def test_a_mixed_step_equals_plain_attention(backend: AttentionBackend, window: int | None) -> None:
    """A whole prefill, a later chunk and two decodes share a step; pages lie in no order."""
    kv = make_pages(num_pages=20, page_size=4)
    whole = make_story(11, [3, 17, 5], seed=1)
    chunked = make_story(21, [2, 19, 7, 11, 1, 13], seed=2)
    old = make_story(9, [4, 18, 6], seed=3)
    young = make_story(1, [8], seed=4)
    run_step(backend, kv, [(chunked, 0, 6), (old, 0, 8)], window)
    outs = run_step(backend, kv, [(old, 8, 9), (whole, 0, 11), (chunked, 6, 21), (young, 0, 1)], window, num_padding=3)
    for out, (story, start) in zip(outs, [(old, 8), (whole, 0), (chunked, 6), (young, 0)], strict=True):
        torch.testing.assert_close(out, plain_attention(story, window)[start:], rtol=1e-4, atol=1e-5)


@both
@pytest.mark.parametrize("window", [None, 40])
def test_long_chunks_equal_plain_attention(backend: AttentionBackend, window: int | None) -> None:
    """Chunks of one shape and several query blocks, one of them deep in its prompt, over pages that were NaN."""
    kv = make_pages(num_pages=60, page_size=16, fill=float("nan"))
    deep, fresh = make_story(400, list(range(1, 26)), seed=1), make_story(290, list(range(30, 49)), seed=2)
    run_step(backend, kv, [(deep, 0, 17)], window)
    outs = run_step(backend, kv, [(deep, 17, 400), (fresh, 0, 290)], window)
    for out, (story, start) in zip(outs, [(deep, 17), (fresh, 0)], strict=True):
        torch.testing.assert_close(out, plain_attention(story, window)[start:], rtol=1e-4, atol=1e-5)


@both
@given(
    page_size=st.sampled_from([1, 3, 16]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    chunk_lens=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    seed=st.integers(0, 9),
)
@settings(max_examples=25)
def test_any_way_to_compose_steps_gives_the_same_attention(
    backend: AttentionBackend, page_size: int, lengths: list[int], chunk_lens: list[int], seed: int
) -> None:
    """Sequences grow by the chunk lengths in turn, over shuffled pages that are full of NaN at first."""
    pages = list(range(1, 1 + sum(-(-length // page_size) for length in lengths)))
    kv = make_pages(len(pages) + 1, page_size, fill=float("nan"))
    random.Random(seed).shuffle(pages)
    stories = [
        make_story(n, [pages.pop() for _ in range(-(-n // page_size))], number) for number, n in enumerate(lengths)
    ]
    outs: list[list[Tensor]] = [[] for _ in stories]
    reached = [0] * len(stories)
    turns = itertools.chain(chunk_lens, itertools.repeat(7))
    while reached != lengths:
        ends = [min(start + next(turns), length) for start, length in zip(reached, lengths, strict=True)]
        moving = [number for number, end in enumerate(ends) if end > reached[number]]
        if moving:
            parts = [(stories[number], reached[number], ends[number]) for number in moving]
            for number, out in zip(moving, run_step(backend, kv, parts), strict=True):
                outs[number].append(out)
        reached = ends
    for story, pieces in zip(stories, outs, strict=True):
        torch.testing.assert_close(torch.cat(pieces), plain_attention(story), rtol=1e-4, atol=1e-5)


@both
def test_what_an_earlier_owner_left_in_a_page_is_never_seen(backend: AttentionBackend) -> None:
    """A poisoned sequence's NaN stays in pages that are given to the next."""
    kv = make_pages(num_pages=4, page_size=8, fill=float("nan"))
    story = make_story(13, [2, 1], seed=5)
    (first,) = run_step(backend, kv, [(story, 0, 9)])
    (second,) = run_step(backend, kv, [(story, 9, 13)])
    torch.testing.assert_close(torch.cat([first, second]), plain_attention(story), rtol=1e-4, atol=1e-5)


@both
def test_a_poisoned_sequence_harms_no_neighbour(backend: AttentionBackend) -> None:
    kv = make_pages(num_pages=8, page_size=8)
    sound, poisoned = make_story(7, [1], seed=6), make_story(12, [2, 3], seed=7)
    poisoned.k_LKD[3] = poisoned.v_LKD[3] = float("nan")
    ill, well = run_step(backend, kv, [(poisoned, 0, 12), (sound, 0, 7)])
    assert ill[3:].isnan().all()
    torch.testing.assert_close(well, plain_attention(sound), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_rows", [1, 7, 8, 9, 16])
def test_only_pages_that_a_step_begins_and_does_not_fill_are_cleared(num_rows: int) -> None:
    pages = torch.full((5, 8, 1, 4), float("nan"))
    slots = torch.tensor([0, *(page * 8 + offset for page in (3, 1) for offset in range(8)), 0])[: num_rows + 1]
    write = KvWrite.plan(slots, page_size=8)
    assert write.fresh_pages.tolist() == ([] if num_rows % 8 == 0 else [(3, 1)[num_rows // 8]])
    rows = torch.arange(len(slots), dtype=torch.float32)[:, None, None].expand(-1, 1, 4)
    write.write(rows, pages)
    written = pages.flatten(0, 1)[slots[1:]]
    assert torch.equal(written, rows[1:]), "row i stands in slot i"
    begun = pages[slots[1:] // 8]
    assert not begun.isnan().any(), "a page that holds a row holds nothing of an earlier owner"


@both
def test_rows_bound_for_the_null_page_leave_no_trace(backend: AttentionBackend) -> None:
    kv = make_pages(num_pages=3, page_size=8)
    run_step(backend, kv, [(make_story(3, [1], seed=8), 0, 3)], num_padding=5)
    assert not kv.k_PBKD[0].any()
    assert not kv.v_PBKD[0].any()


def test_the_mode_chooses_the_backend() -> None:
    assert select_attention(deterministic=False).name == "torch-paged"
    assert select_attention(deterministic=True).name == "torch-invariant"
