"""Prompts whose pages come from, or go to, another replica: which pages are in transfer, and what a request waits for.

    send     rows are planned -> their pages are exported, and stay in transfer until `end`
    receive  admitted -> pages for all but the last prompt token, in transfer -> received: a prefix hit of prompt - 1
                                                                            -> failed: the request ends

Knows page numbers and requests, not how pages travel. `end` and `fail` may come at any time and as often as they like.
"""

from __future__ import annotations

from headrace_worker.scheduling.blocks import PagePool, PoolExhausted
from headrace_worker.scheduling.events import PagesWanted
from headrace_worker.scheduling.group import Group
from headrace_worker.scheduling.plan import PageExport
from headrace_worker.scheduling.request import HandOff
from headrace_worker.scheduling.running import RunningSet

LEAST_PAGES = 2
"""Fewer missing pages than these are computed where they are wanted."""


class HandOffs:
    """Transfers are named by the handle of their request's choice 0."""

    def __init__(self, pool: PagePool, running: RunningSet) -> None:
        self._pool, self._running = pool, running
        self._pages: dict[int, list[int]] = {}
        self._next_page: dict[int, int] = {}
        self._receiving: dict[int, Group] = {}
        self._imports: list[int] = []

    @property
    def num_open(self) -> int:
        """Transfers whose pages may not be handed out."""
        return len(self._pages)

    def export(self, group: Group, stop: int) -> PageExport:
        """What becomes whole when the prompt is computed up to `stop`: everything before it that has not been sent."""
        request, table = group.request, group.prompt.page_table
        size = group.page_tokens
        first = self._next_page.get(request.handle, request.from_page)
        is_last = stop == group.num_prompt
        end = -(-stop // size) if is_last else stop // size
        self._cover(request.handle, table[first:end])
        self._next_page[request.handle] = max(first, end)
        return PageExport(request.handle, first, table[first:end], is_last)

    def begin_receive(self, group: Group, now: float) -> bool:
        """Give the group pages for all but its last prompt token and ask for their content; False if it computes."""
        request, hits = group.request, len(group.prompt.page_table)
        num_wanted = -(-(group.num_prompt - 1) // group.page_tokens) - hits
        if request.hand_off is not HandOff.RECEIVE or not group.is_hard or num_wanted < LEAST_PAGES:
            return False
        try:
            group.grow(group.prompt, group.num_prompt - 1)
        except PoolExhausted:
            self._running.end_all(group, "kv_exhausted", now)
            return True
        pages = group.prompt.page_table[hits:]
        self._cover(request.handle, pages)
        self._receiving[request.handle] = group
        self._running.hold(group)
        self._running.events.append(
            PagesWanted(request.handle, request.response_id, request.attempt, hits, pages, group.num_prompt - 1)
        )
        return True

    def received(self, handle: int) -> None:
        """All that was wanted is there and checked. No-op, but for the pages, if the request has ended meanwhile."""
        group = self._receiving.pop(handle, None)
        pages = self._pages.get(handle, ())
        if group is not None and group.live:
            self._imports.extend(pages)
            prompt = group.prompt
            prompt.num_computed = group.num_prompt - 1
            group.publish(prompt, prompt.page_table, prompt.num_computed, self._pool)
            self._running.go_on(group)
        self.end(handle)

    def fail(self, handle: int, reason: str, now: float) -> None:
        """The pages will not come. They stay in transfer until `end`: somebody may still write to them."""
        group = self._receiving.pop(handle, None)
        if group is not None and group.live:
            self._running.end_all(group, reason, now)

    def end(self, handle: int) -> None:
        """The other side has acknowledged, or provably stopped."""
        self._receiving.pop(handle, None)
        self._next_page.pop(handle, None)
        for page in self._pages.pop(handle, ()):
            self._pool.end_transfer(page)

    def take_imports(self) -> tuple[int, ...]:
        """Pages received since the last call, for the next plan to load."""
        imports, self._imports = tuple(self._imports), []
        return imports

    def _cover(self, handle: int, pages: tuple[int, ...]) -> None:
        for page in pages:
            self._pool.begin_transfer(page)
        self._pages.setdefault(handle, []).extend(pages)
