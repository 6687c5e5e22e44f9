"""Penalties of tokens that were seen, for all rows of a step in one launch.

Repetition divides positive and multiplies negative logits (Keskar et al., "CTRL", 2019); presence and frequency
subtract by the output alone (OpenAI's definition).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace_worker.kernels.case import Case, aligned_of, typed

_WIDTH = 256


@dataclass(frozen=True)
class SeenTokens:
    """One entry per (row, token) that was seen: tokens of a row are distinct. Penalties come one per entry."""

    places_M2: Tensor
    """int64: row, token"""
    counts_M: Tensor
    """float32: how often it is in the output; 0 for one that is in the prompt alone"""
    penalties_M3: Tensor
    """float32: repetition, presence, frequency"""

    @classmethod
    def of(
        cls, rows: Sequence[tuple[int, dict[int, int], tuple[float, float, float]]], device: torch.device
    ) -> "SeenTokens":
        """From (row, token -> count in the output, penalties)."""
        places = [(row, token) for row, counts, _ in rows for token in counts]
        counts = [count for _, each, _ in rows for count in each.values()]
        penalties = [three for _, each, three in rows for _ in each]

        def to(values: Sequence[object], dtype: torch.dtype) -> Tensor:
            made = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
            return made.to(device, non_blocking=True)

        shape = len(places)
        return cls(
            to(places, torch.int64).reshape(shape, 2),
            to(counts, torch.float32),
            to(penalties, torch.float32).reshape(shape, 3),
        )


def penalise_twin(logits_RV: Tensor, seen: SeenTokens) -> None:
    """In place."""
    rows, tokens = seen.places_M2.unbind(1)
    repetition, presence, frequency = seen.penalties_M3.unbind(1)
    value = logits_RV[rows, tokens]
    value = torch.where(value > 0, value / repetition, value * repetition)
    value = value - torch.where(seen.counts_M > 0, presence + frequency * seen.counts_M, 0.0)
    logits_RV[rows, tokens] = value


@triton.jit
def _penalise(logits, places, counts, penalties, stride, num_seen, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    mask = at < num_seen
    row = tl.load(places + at * 2, mask=mask, other=0)
    token = tl.load(places + at * 2 + 1, mask=mask, other=0)
    target = logits + row * stride + token
    value = tl.load(target, mask=mask, other=0.0)
    repetition = tl.load(penalties + at * 3, mask=mask, other=1.0)
    value = tl.where(value > 0, value / repetition, value * repetition)
    count = tl.load(counts + at, mask=mask, other=0.0)
    presence = tl.load(penalties + at * 3 + 1, mask=mask, other=0.0)
    frequency = tl.load(penalties + at * 3 + 2, mask=mask, other=0.0)
    value -= tl.where(count > 0, presence + frequency * count, 0.0)
    tl.store(target, value, mask=mask)


def penalise(logits_RV: Tensor, seen: SeenTokens) -> None:
    """As `penalise_twin`, of float32 logits."""
    num_seen = len(seen.counts_M)
    if num_seen:
        _penalise[(triton.cdiv(num_seen, _WIDTH),)](
            logits_RV, seen.places_M2, seen.counts_M, seen.penalties_M3, logits_RV.stride(0), num_seen,
            WIDTH=_WIDTH, num_warps=4,
        )  # fmt: skip


def cases() -> list[Case]:
    signature = typed(p_fp32="logits counts penalties", p_i64="places", i32="stride num_seen")
    return [Case("penalise fp32", _penalise, signature, {"WIDTH": _WIDTH}, aligned=aligned_of(signature))]
