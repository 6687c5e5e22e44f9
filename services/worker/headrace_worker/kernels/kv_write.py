"""Writing a step's keys and values to their pages. Torch twin; knows neither sequences nor models."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class KvWrite:
    """Which rows go where, worked out once per step. Rows bound for page 0 (padding) are left out.

    A page is cleared in the step that writes its first slot: what an earlier owner left there (a NaN, say) would
    otherwise reach this one through a masked product, since 0 * NaN is NaN.
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
        fresh = slots[slots % page_size == 0] // page_size
        return cls(rows=rows, slots=slots, fresh_pages=fresh)

    def write(self, rows_TKD: Tensor, pages_PBKD: Tensor) -> None:
        """Copy this step's K (or V) of one layer into its pages."""
        if self.fresh_pages.numel():
            pages_PBKD.index_fill_(0, self.fresh_pages, 0.0)
        if self.slots.numel():
            chosen = rows_TKD if self.rows is None else rows_TKD[self.rows]
            pages_PBKD.flatten(0, 1).index_copy_(0, self.slots, chosen.to(pages_PBKD.dtype))
