"""Masks of allowed ids over rows of logits. Knows no grammar. Words are little-endian, as every machine of ours is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy
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
    device, (num_rows, vocab_size) = logits_RV.device, logits_RV.shape
    # On the host: numpy unpacks bits an order of magnitude faster than tensor arithmetic does.
    allowed_SV = numpy.unpackbits(masks.words_SW.numpy().view(numpy.uint8), axis=1, count=vocab_size, bitorder="little")
    forbidden_SV = torch.from_numpy(allowed_SV == 0).to(device)
    if masks.rows == list(range(num_rows)):
        logits_RV.masked_fill_(forbidden_SV, float("-inf"))
        return
    forbidden_RV = torch.zeros(num_rows, vocab_size, dtype=torch.bool, device=device)
    forbidden_RV[torch.tensor(masks.rows, dtype=torch.int64, device=device)] = forbidden_SV
    logits_RV.masked_fill_(forbidden_RV, float("-inf"))
