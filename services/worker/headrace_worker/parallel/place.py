"""Where a rank stands in its group: rank = stage x tensor degree + number within its tensor group. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_worker.perf.layout import Layout


@dataclass(frozen=True)
class Place:
    """One rank of `layout`. Rank 0 leads; the first rank of the last stage draws the tokens."""

    rank: int
    layout: Layout

    @property
    def tensor_rank(self) -> int:
        return self.rank % self.layout.tensor

    @property
    def stage(self) -> int:
        return self.rank // self.layout.tensor

    @property
    def is_first_stage(self) -> bool:
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage == self.layout.pipeline - 1

    @property
    def draws(self) -> bool:
        return self.rank == self.drawing_rank

    @property
    def drawing_rank(self) -> int:
        return (self.layout.pipeline - 1) * self.layout.tensor

    @property
    def before(self) -> int:
        """The rank of the stage before that hands its hidden states to this one."""
        return self.rank - self.layout.tensor

    @property
    def behind(self) -> int:
        """The rank of the next stage that takes this one's hidden states."""
        return self.rank + self.layout.tensor

    def tensor_group(self, stage: int | None = None) -> list[int]:
        """The ranks of a stage; without one, of this rank's."""
        first = (self.stage if stage is None else stage) * self.layout.tensor
        return list(range(first, first + self.layout.tensor))


ALONE = Place(0, Layout())
