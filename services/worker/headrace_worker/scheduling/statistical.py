"""The class that is promised less than its whole future: who of it may enter, and who must make room.

Default-class promises are a hard sum; statistical requests live in what is left. They enter while the pages that all of
them together may still take, as mean + z * deviation of lengths learned online, fit there: then they overrun it with at
most the stated probability. When they do, or when a default request needs the room, the youngest is preempted: its
pages go back, and later its prompt and its output so far are computed again. Nothing is drawn twice.

Knows pages and lengths, not order, time or steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from statistics import NormalDist
from typing import NamedTuple

from headrace_worker.scheduling.group import Group
from headrace_worker.scheduling.ledger import Ledger
from headrace_worker.scheduling.lengths import LengthDistribution
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.prefix import match_prefix
from headrace_worker.scheduling.request import Request, Sequence
from headrace_worker.scheduling.running import RunningSet

# What rounding up to whole pages adds on average.
_ROUNDING = 0.5


class Need(NamedTuple):
    """Pages that are yet to be taken: mean and variance of their number, and the most that it can be."""

    mean: float = 0.0
    variance: float = 0.0
    most: int = 0

    def plus(self, other: Need) -> Need:
        return Need(self.mean + other.mean, self.variance + other.variance, self.most + other.most)


class StatisticalClass:
    """Owns the rules of the class; `RunningSet` keeps who is in it."""

    def __init__(self, limits: Limits, ledger: Ledger, running: RunningSet, lengths: LengthDistribution) -> None:
        self.lengths = lengths
        self._limits = limits
        self._ledger = ledger
        self._running = running
        self._deviations = NormalDist().inv_cdf(1.0 - limits.overrun) if limits.overrun else 0.0

    def admits(self, request: Request) -> bool:
        """Whether the request is of this class here; where it is off, a promise is always whole."""
        return request.statistical and self._limits.overrun > 0

    def fits_new(self, request: Request, num_hits: int, num_unreferenced: int) -> bool:
        """Whether one more may enter. Those that were preempted go first."""
        if self._running.suspended:
            return False
        return self._fits(self._need_of(request, [0] * request.n, num_hits), num_unreferenced)

    def resume_next(self) -> Group | None:
        """The oldest that was preempted, with its pages of the prefix cache, if it fits again."""
        group = min(self._running.suspended, key=lambda each: each.order, default=None)
        if group is None or group.has_rows_in_flight:
            return None
        if self._running.num_choices + len(group.live) > self._limits.max_running:
            return None
        pool, size = self._ledger.pool, self._limits.page_tokens
        hits = match_prefix(pool, group.chain)[: group.num_prompt // size]
        need = self._need_of(group.request, [len(each.output_ids) for each in group.live], len(hits))
        if not self._fits(need, sum(1 for page in hits if pool.is_cached(page))):
            return None
        for page in hits:
            pool.share(page)
        self._running.resume(group, hits)
        return group

    def secure_step(self) -> None:
        """Before a step is put together: preempt from the youngest on until the others have the pages it takes."""
        groups = sorted(self._active(), key=lambda group: group.order)
        needs = [self._pages_of_step(group) for group in groups]
        while groups and sum(needs) > self._ledger.headroom:
            self._running.preempt(groups.pop())
            needs.pop()

    def make_room(self, num_pages: int, num_choices: int, hits: Iterable[int]) -> bool:
        """Preempt the youngest for a default request that lacks so many pages or choices; False if all do not do."""
        active = sorted(self._active(), key=lambda group: group.order)
        if num_pages > self._reclaimable(active, set(hits)) or num_choices > sum(len(group.live) for group in active):
            return False
        if active:
            self._running.preempt(active[-1])
        return bool(active)

    def note_end(self, group: Group, sequence: Sequence) -> None:
        """Learn from a choice that ended by itself or at its limit."""
        if not group.is_hard:
            self.lengths.observe(len(sequence.output_ids))

    def _active(self) -> list[Group]:
        return [group for group in self._running.statistical if not group.is_suspended]

    def _fits(self, need: Need, num_unreferenced: int) -> bool:
        for group in self._active():
            need = need.plus(self._need_of_running(group))
        likely = need.mean + self._deviations * math.sqrt(need.variance)
        return min(likely, need.most) <= self._ledger.headroom - num_unreferenced

    def _need_of(self, request: Request, nums_done: list[int], num_hits: int) -> Need:
        """Of a request that holds nothing but its hits."""
        full = request.num_prompt // self._limits.page_tokens
        need = Need(full - num_hits, 0.0, full - num_hits)
        for num_done in nums_done:
            need = need.plus(self._need_of_choice(request, num_done, full))
        return need

    def _need_of_running(self, group: Group) -> Need:
        if not group.forked:
            nums_done = [len(each.output_ids) for each in group.live]
            return self._need_of(group.request, nums_done, len(group.prompt.page_table))
        need = Need()
        for sequence in group.live:
            need = need.plus(self._need_of_choice(group.request, len(sequence.output_ids), len(sequence.page_table)))
        return need._replace(most=group.reservation.owed)

    def _need_of_choice(self, request: Request, num_done: int, num_pages: int) -> Need:
        """Of one choice that has `num_pages`, prompt pages included."""
        size, most = self._limits.page_tokens, self._limits.pages_for(request.num_max) - num_pages
        remaining = self.lengths.remaining(num_done, request.max_output)
        mean = (request.num_prompt + num_done + remaining.mean) / size + _ROUNDING - num_pages
        return Need(min(max(mean, 0.0), most), remaining.variance / (size * size), most)

    def _pages_of_step(self, group: Group) -> int:
        """The most that the next step takes for this group."""
        limits = self._limits
        if not group.forked:
            stop = min(group.num_prompt, group.prompt.num_computed + limits.max_chunk_tokens)
            return max(0, limits.pages_for(stop) - len(group.prompt.page_table))
        total = num_sharing = 0
        for sequence in group.live:
            num_known = group.num_prompt + len(sequence.output_ids)
            stop = max(sequence.num_computed + 1, min(num_known, sequence.num_computed + limits.max_chunk_tokens))
            total += max(0, limits.pages_for(stop) - len(sequence.page_table))
            num_sharing += group.needs_copy(sequence, self._ledger.pool)
        # The last holder of a shared page keeps it; and nothing takes more than it was promised.
        return min(total + max(0, num_sharing - 1), group.reservation.owed)

    def _reclaimable(self, groups: list[Group], kept: set[int]) -> int:
        """Pages that only these groups hold, less those that would be pinned again at once."""
        claims = Counter(page for group in groups for page in group.pages())
        holders = self._ledger.pool.holders
        return sum(1 for page, count in claims.items() if page not in kept and holders(page) == count)
