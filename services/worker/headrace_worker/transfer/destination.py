"""The decode side of one hand-off, as a state machine: what has arrived, and when its pages may leave.

    open --everything arrived--> complete --> released
         --abort, silence------> aborted ---> released    when no operation writes any more: it ended, or was fenced

What completes after an abort is counted and dropped. Pure; the clock is an argument, in seconds.
"""

from __future__ import annotations

import enum

from headrace_worker.transfer.pages import Extent
from headrace_worker.transfer.shape import HandOffError


class PullState(enum.Enum):
    OPEN = "open"
    COMPLETE = "complete"
    ABORTED = "aborted"


class Destination:
    """Pages `first_page` and on of a prompt, in every layer. Silence of `patience_s` is the other side's death."""

    def __init__(self, whole: Extent, now: float, patience_s: float) -> None:
        assert whole.first_layer == 0, "a hand-off is of all layers"
        self.whole = whole
        self.state = PullState.OPEN
        self.reason = ""
        self.num_late = 0
        self.silent_at_s = now + patience_s
        self._patience_s = patience_s
        self._arrived = [bytearray(whole.num_pages) for _ in whole.layers]
        self._num_missing = whole.num_layers * whole.num_pages
        self._writing: list[Extent] = []

    @property
    def released(self) -> bool:
        """Whether the pages may be used by their request, or by anybody."""
        return self.state is not PullState.OPEN and not self._writing

    @property
    def num_missing(self) -> int:
        """Pages, counted per layer."""
        return self._num_missing

    def hear(self, now: float) -> None:
        """A sign of life of the other side."""
        self.silent_at_s = now + self._patience_s

    def begin(self, extent: Extent) -> bool:
        """An operation is about to write there; False, and it must not, if nothing is waited for any more.

        Raises HandOffError if nobody asked for this.
        """
        inside = (
            extent.first_layer >= 0
            and extent.layers.stop <= self.whole.num_layers
            and self.whole.first_page <= extent.first_page
            and extent.pages.stop <= self.whole.pages.stop
        )
        if not inside or extent.num_layers < 1 or extent.num_pages < 1:
            raise HandOffError(f"{extent} is not a part of {self.whole}")
        if self.state is not PullState.OPEN:
            self.num_late += 1
            return False
        self._writing.append(extent)
        return True

    def end(self, extent: Extent, *, arrived: bool) -> None:
        """The operation is over; `arrived`: whole, checked, and from pages that were still leased after it."""
        self._writing.remove(extent)
        if self.state is PullState.ABORTED:
            self.num_late += 1
            return
        if arrived:
            self._mark(extent)
        if self.state is PullState.OPEN and not self._num_missing:
            self.state = PullState.COMPLETE

    def fence(self) -> None:
        """No operation can write any more, whether or not we heard of its end."""
        assert self.state is PullState.ABORTED, "only what was aborted is fenced"
        self._writing.clear()

    def abort(self, reason: str) -> None:
        """From either side, at any time, as often as anyone likes; what is complete stays so."""
        if self.state is PullState.OPEN:
            self.state, self.reason = PullState.ABORTED, reason

    def tick(self, now: float) -> None:
        """Who writes does not listen: only silence beside that counts."""
        if self.state is PullState.OPEN and not self._writing and now >= self.silent_at_s:
            self.abort("prefill_lost")

    def _mark(self, extent: Extent) -> None:
        start = extent.first_page - self.whole.first_page
        for layer in extent.layers:
            row = self._arrived[layer]
            for page in range(start, start + extent.num_pages):
                self._num_missing -= not row[page]
                row[page] = 1
