"""Masks of allowed ids over rows of logits. Knows no grammar."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

WORD_BITS = 32


class TokenMasks(NamedTuple):
    """Row `rows[s]` of a batch of logits may draw only ids whose bit in `words_SW[s]` (int32, on the host) is set."""

    rows: list[int]
    words_SW: Tensor


def num_words(vocab_size: int) -> int:
    return -(-vocab_size // WORD_BITS)


def pack_ids(ids: Iterable[int], vocab_size: int) -> Tensor:
    """A set of ids in the form of a mask, [W]."""
    bits = torch.zeros(num_words(vocab_size) * WORD_BITS, dtype=torch.int64)
    bits[torch.tensor(sorted(ids), dtype=torch.int64)] = 1
    words = (bits.view(-1, WORD_BITS) << torch.arange(WORD_BITS)).sum(1)
    return words.to(torch.int32)  # the 32 low bits


def apply_masks(logits_RV: Tensor, masks: TokenMasks) -> None:
    """-inf, in place, wherever a mask does not allow an id."""
    device, vocab_size = logits_RV.device, logits_RV.shape[1]
    rows_S = torch.tensor(masks.rows, dtype=torch.int64, device=device)
    shifts = torch.arange(WORD_BITS, dtype=torch.int32, device=device)
    bits_SWb = (masks.words_SW.to(device)[:, :, None] >> shifts) & 1
    forbidden_SV = (bits_SWb == 0).flatten(1)[:, :vocab_size]
    logits_RV[rows_S] = logits_RV[rows_S].masked_fill(forbidden_SV, float("-inf"))
