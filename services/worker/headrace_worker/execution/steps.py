"""The port between the runner and what computes its steps: one rank, or a group as its leader sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeAlias

from torch import Tensor

from headrace_worker.execution.runner import GroupTimes, OnPages
from headrace_worker.execution.token_mask import TokenMasks
from headrace_worker.scheduling.plan import Plan, ResultRow
from headrace_worker.transfer.image import ImageRef

# Masks for the rows that draw, in the order of the plan; waits for what is not there yet.
MaskSource: TypeAlias = Callable[[], "TokenMasks | None"]


class RankSizes(NamedTuple):
    """Bytes of one rank: its weights, its measured workspace, one KV page of its layers, and what it has for pages."""

    weight_bytes: int
    workspace_bytes: int
    page_bytes: int
    budget_bytes: int


class Drawn(NamedTuple):
    """The tokens of a step, and the seconds that drawing them took."""

    rows: list[ResultRow]
    sample_s: float = 0.0
    times: GroupTimes = GroupTimes()


class Steps(ABC):
    """Computes plans in their order. All calls come from one thread, in torch's inference mode."""

    depth: int = 1
    """Plans that may be begun and not ended."""

    @abstractmethod
    def allocate(self, num_pages: int) -> None:
        """KV pages on every rank, empty; what was there before is gone."""

    @abstractmethod
    def measuring(self) -> AbstractContextManager[None]:
        """The most memory that steps within take is the workspace of `sizes`."""

    @abstractmethod
    def sizes(self) -> list[RankSizes]:
        """Of every rank."""

    @abstractmethod
    def logits(self, plan: Plan) -> Tensor:
        """float32 logits of the rows that draw, [R, V]; draws nothing."""

    @abstractmethod
    def begin(self, plan: Plan, masks: MaskSource) -> None:
        """Start a step."""

    @abstractmethod
    def end(self) -> Drawn:
        """What the oldest step begun has drawn."""

    @abstractmethod
    def images(self) -> list[ImageRef]:
        """Of every rank's pages as they were last allocated; none where nobody else may read them."""

    @abstractmethod
    def watch_pages(self, on_pages: OnPages) -> None:
        """Who hears of the exports of plans."""

    def measure_all_reduce(self) -> tuple[tuple[int, float], ...]:
        """Bytes and seconds of sums over a tensor group; none where there is one rank."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """End what was started."""
