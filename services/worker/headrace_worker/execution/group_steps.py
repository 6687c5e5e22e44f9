"""A group of ranks as its leader sees it: announces every plan, computes its own part, hands back what was drawn.

    leader:  Run(A) compute A, hand on | Run(B) compute B, hand on | A's tokens | Run(A') ...
    stage 1:                           | take over A, draw         | take over B, draw   | ...

With one stage the leader draws itself. With more, the first rank of the last stage does, with the masks that the leader
sends; as many plans are in flight as there are stages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from headrace_worker.execution import rank_messages as tell
from headrace_worker.execution.rank_steps import RankSteps
from headrace_worker.execution.ranks import Ranks
from headrace_worker.execution.runner import GroupTimes, OnPages
from headrace_worker.execution.steps import Drawn, MaskSource, RankSizes, Steps
from headrace_worker.parallel.collectives import CollectiveFailed, Collectives
from headrace_worker.parallel.probe import measure_all_reduce
from headrace_worker.scheduling.plan import Plan
from headrace_worker.transfer.image import ImageRef


class GroupSteps(Steps):
    """Every method raises RunnerError, with the reason, when the group is over."""

    def __init__(self, own: RankSteps, group: Collectives, ranks: Ranks) -> None:
        self._own, self._group, self._ranks = own, group, ranks
        self._layout = group.place.layout
        self.depth = self._layout.pipeline
        self._in_flight: deque[Plan] = deque()
        self._active_since_s = 0.0
        self._told = GroupTimes()
        self._on_pages: OnPages | None = None

    def allocate(self, num_pages: int) -> None:
        self._ranks.send(tell.Allocate(num_pages))
        self._own.allocate(num_pages)
        self._told = self._count()  # what came before is no step's

    @contextmanager
    def measuring(self) -> Iterator[None]:
        self._ranks.send(tell.Measure(begin=True))
        with self._own.measuring():
            yield
        self._ranks.send(tell.Measure(begin=False))

    def sizes(self) -> list[RankSizes]:
        self._ranks.send(tell.TellSizes())
        return [*self._own.sizes(), *(report.sizes for report in self._ranks.receive_all(tell.Sizes))]

    def images(self) -> list[ImageRef]:
        self._ranks.send(tell.TellImages())
        return [*self._own.images(), *(ref for each in self._ranks.receive_all(tell.Images) for ref in each.refs)]

    def watch_pages(self, on_pages: OnPages) -> None:
        self._on_pages = on_pages

    def logits(self, plan: Plan) -> Tensor:
        self._ranks.send(tell.Look(plan))
        with self._explained():
            logits_RV = self._own.logits(plan)
        if self._group.place.draws:
            return logits_RV
        return self._ranks.receive(self._group.place.drawing_rank, tell.Logits).logits_RV

    def measure_all_reduce(self) -> tuple[tuple[int, float], ...]:
        self._ranks.send(tell.Probe())
        with self._explained():
            return measure_all_reduce(self._group)

    def begin(self, plan: Plan, masks: MaskSource) -> None:
        if not self._in_flight:
            self._active_since_s = time.perf_counter()
        self._in_flight.append(plan)
        self._ranks.send(tell.Run(plan))
        with self._explained():
            self._own.begin(plan, masks)
        if not self._group.place.draws:
            self._ranks.send(tell.Draw(masks()))

    def end(self) -> Drawn:
        with self._explained():
            drawn = self._own.end()
        if not self._group.place.draws:
            drawn = self._ranks.receive(self._group.place.drawing_rank, tell.Drawn).tokens
        plan = self._in_flight.popleft()
        if plan.exports and self._on_pages is not None:
            self.sizes()  # a rank that answers has done all that came before, its part of this step included
            self._on_pages(plan.exports, 0, self._own.num_layers)
        return drawn._replace(times=self._times())

    def close(self) -> None:
        self._ranks.close()
        self._group.close()

    def _times(self) -> GroupTimes:
        """Since the last time. A stage is idle while a plan is in flight and it works at none: the bubble."""
        now_s, before = time.perf_counter(), self._told
        active_s, self._active_since_s = now_s - self._active_since_s, now_s
        self._told = self._count()
        busy_s = self._told.busy_s - before.busy_s
        idle_s = max(0.0, self._layout.pipeline * active_s - busy_s) if self._layout.pipeline > 1 else 0.0
        return GroupTimes(self._told.collective_s - before.collective_s, busy_s, idle_s)

    def _count(self) -> GroupTimes:
        """Since the start. One stage alone has no others to wait for."""
        place, num_stages = self._group.place, self._layout.pipeline
        firsts = [place.tensor_group(stage)[0] for stage in range(num_stages)] if num_stages > 1 else []
        busy_s = sum(self._ranks.log.line(rank).busy_ns for rank in firsts) / 1e9
        return GroupTimes(self._group.recorder.collective_s, busy_s)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except CollectiveFailed as error:
            raise self._ranks.explain(error) from error
