"""A mask forbids exactly the ids whose bit is not set, in its own rows."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_worker.execution.token_mask import TokenMasks, apply_masks, num_words, pack_ids


@given(
    vocab_size=st.integers(1, 100),
    sets=st.lists(st.sets(st.integers(0, 99)), min_size=1, max_size=4),
    extra_rows=st.integers(0, 3),
)
@settings(max_examples=50, deadline=None)
def test_only_what_is_in_the_set_is_left(vocab_size: int, sets: list[set[int]], extra_rows: int) -> None:
    allowed = [{token_id for token_id in each if token_id < vocab_size} for each in sets]
    logits_RV = torch.zeros(len(allowed) + extra_rows, vocab_size)
    rows = list(range(extra_rows, len(allowed) + extra_rows))
    words_SW = torch.stack([pack_ids(ids, vocab_size) for ids in allowed])
    assert words_SW.shape == (len(allowed), num_words(vocab_size))
    apply_masks(logits_RV, TokenMasks(rows, words_SW))
    for row in range(extra_rows):
        assert logits_RV[row].tolist() == [0.0] * vocab_size
    for row, ids in zip(rows, allowed, strict=True):
        assert set(logits_RV[row].isfinite().nonzero().flatten().tolist()) == ids
