"""Writing a step's keys and values to their pages. Torch twin; knows neither sequences nor models."""

from dataclasses import dataclass

import torch
from torch import Tensor

E4M3_MAX = 448.0


@dataclass(frozen=True)
class KvWrite:
    """Which rows go where, worked out once per step. Rows bound for page 0 (padding) are left out.

    A page is cleared in the step that writes its first slot, unless that step fills it: what an earlier owner left
    there (a NaN, say) would otherwise reach this one through a masked product, since 0 * NaN is NaN.
    """

    rows: Tensor | None
    """int64 rows to write, None for all of them in order."""
    slots: Tensor
    """int64 slot of each such row."""
    fresh_pages: Tensor
    """int64 pages to clear first."""

    @classmethod
    def plan(cls, slots_T: Tensor, page_size: int) -> "KvWrite":
        """From the slot of every row of the step."""
        real_T = slots_T >= page_size
        rows = None if bool(real_T.all()) else real_T.nonzero()[:, 0]
        slots = slots_T if rows is None else slots_T[rows]
        first = (slots % page_size == 0).nonzero()[:, 0]
        last = first + page_size - 1  # of this page, if the step fills it: a sequence's rows follow one another
        reached = slots[last.clamp_(max=max(0, len(slots) - 1))]
        fresh = slots[first][reached != slots[first] + page_size - 1] // page_size
        return cls(rows=rows, slots=slots, fresh_pages=fresh)

    def write(self, rows_TKD: Tensor, pages_PBKD: Tensor, scale: float = 1.0) -> None:
        """Copy this step's K (or V) of one layer into its pages; into fp8 pages divided by their scale."""
        chosen = rows_TKD if self.rows is None else rows_TKD[self.rows]
        if pages_PBKD.dtype == torch.float8_e4m3fn:
            chosen = to_e4m3(chosen, scale).view(torch.uint8)  # bytes: few operations know the type itself
            pages_PBKD = pages_PBKD.view(torch.uint8)
        if self.fresh_pages.numel():
            pages_PBKD.index_fill_(0, self.fresh_pages, 0)
        if self.slots.numel():
            pages_PBKD.flatten(0, 1).index_copy_(0, self.slots, chosen.to(pages_PBKD.dtype))


def to_e4m3(x: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """x / scale, rounded; what is too large becomes the largest value, where torch alone would make it NaN."""
    return (x.to(torch.float32) / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def largest_of_rows(x_TI: Tensor) -> Tensor:
    """[T, 1] float32: the largest magnitude of each row."""
    return torch.linalg.vector_norm(x_TI, float("inf"), dim=-1, keepdim=True, dtype=torch.float32)


def from_pages(rows: Tensor, like: Tensor, scale: float) -> Tensor:
    """What was gathered from pages, in the dtype of the queries."""
    return rows if rows.dtype == like.dtype else rows.to(like.dtype) * scale
