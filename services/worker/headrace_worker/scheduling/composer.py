"""Puts one step together: which tokens each sequence runs, in which pages, after which copies.

There are no phases: a row is "the tokens of this sequence that are not computed yet", as many as the budget allows.
Knows rows and pages; what may enter, and how large the budget is, it is told.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace_worker.scheduling.blocks import PagePool, PoolExhausted
from headrace_worker.scheduling.group import Group
from headrace_worker.scheduling.hand_off import HandOffs
from headrace_worker.scheduling.plan import PageCopy, PageExport, Plan, PlanRow
from headrace_worker.scheduling.request import HandOff, Sequence
from headrace_worker.scheduling.running import RunningSet

_ON_DEVICE = (-1,)
# Of what is made for every row of every step: a named tuple without the call of its own `__new__`, which costs as much.
_made = tuple.__new__


class Work(NamedTuple):
    """A row with whom it is for: `samplers` are the choices that draw from it, `holder` the sequence it computes."""

    row: PlanRow
    holder: Sequence
    group: Group
    samplers: tuple[Sequence, ...]
    copy: PageCopy | None = None


class StepDraft:
    """A step being put together."""

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.admitted: list[Group] = []
        self.exports: list[PageExport] = []
        self.num_decode_tokens = 0
        self.context_tokens = 0
        self.least_gap_s: float | None = None

    def plan(self, step: int, released: tuple[int, ...], imports: tuple[int, ...] = ()) -> Plan:
        rows = tuple([work.row for work in self.works])
        copies = tuple([work.copy for work in self.works if work.copy is not None])
        admitted = tuple([group.request for group in self.admitted if group.live])
        return Plan(step, rows, copies, admitted, released, tuple(self.exports), imports)


class Composer:
    """Adds rows to a draft. A sequence whose pages the pool refuses fails alone, as kv_exhausted."""

    def __init__(self, pool: PagePool, running: RunningSet, hand_offs: HandOffs, overlap: bool, depth: int = 1) -> None:
        self._pool = pool
        self._running = running
        self._hand_offs = hand_offs
        self._max_in_flight = 1 if overlap else 0
        self._max_chunks_in_flight = depth + overlap
        self._depth = depth

    def add_decodes(self, draft: StepDraft, now: float) -> None:
        """A row for every choice whose input is known, or, overlapped, is being computed by its only row in flight.

        Of several plans in flight each takes its share, so that none waits for all the others' tokens.
        """
        refused: list[Group] = []
        works = draft.works
        share = -(-len(self._running.decoding) // self._depth)
        for sequence, group in self._running.decoding.items():
            if len(works) >= share:
                break
            if sequence.num_in_flight and self._must_wait(sequence, group):
                continue
            try:
                work = self._decode(sequence, group)
            except PoolExhausted:
                refused.append(group)
                continue
            works.append(work)
            draft.num_decode_tokens += len(work.row.token_ids)
            draft.context_tokens += sequence.num_computed
            gap_s = group.request.inter_token_s
            if gap_s is not None and (draft.least_gap_s is None or gap_s < draft.least_gap_s):
                draft.least_gap_s = gap_s
        for group in refused:
            self._fail(group, draft, now)

    def _must_wait(self, sequence: Sequence, group: Group) -> bool:
        """Whether what is in flight for a choice must be known before its next row can be planned."""
        num_in_flight = sequence.num_in_flight
        if num_in_flight > self._max_in_flight:
            return True
        # The length ends a sequence without looking at its tokens: nothing is planned past it.
        if len(sequence.output_ids) + num_in_flight >= group.request.max_output:
            return True
        # What a grammar or a penalty makes of the token in flight is known only when that is on the host.
        return group.looks_back

    def add_prefill(self, draft: StepDraft, group: Group, budget: int, now: float) -> int:
        """The next chunk of a prompt, at most `budget` tokens; returns how many it took (0: in flight, or failed).

        A chunk needs nothing of the one before it but its KV, and plans execute in order: as many chunks of a prompt
        are in flight as there can be plans.
        """
        prompt = group.prompt
        if prompt.num_in_flight >= self._max_chunks_in_flight or prompt.num_computed == group.num_prompt:
            return 0
        start = prompt.num_computed
        stop = min(group.num_prompt, start + budget)
        try:
            if stop > group.num_hit_tokens:
                group.grow(prompt, stop)
        except PoolExhausted:
            self._fail(group, draft, now)
            return 0
        token_ids = tuple(group.prompt_ids[start:stop])
        handle = group.live[0].handle
        table = prompt.page_table
        samplers: tuple[Sequence, ...] = ()
        prompt.num_computed = stop
        if group.request.hand_off is HandOff.SEND:
            draft.exports.append(self._hand_offs.export(group, stop))
        elif stop == group.num_prompt:
            # A choice that has drawn before it was preempted draws again only behind what it has drawn.
            samplers = tuple([sequence for sequence in group.live if not sequence.output_ids])
            self._running.fork(group)
        handles = tuple([sequence.handle for sequence in samplers])
        row = PlanRow(handle, token_ids, start, table, handles, 0, max(start, group.num_hit_tokens))
        prompt.num_in_flight += 1
        for sequence in samplers:
            sequence.num_in_flight += 1
        draft.works.append(Work(row, prompt, group, samplers))
        return stop - start

    def add_catch_up(self, draft: StepDraft, sequence: Sequence, budget: int, now: float) -> int:
        """The next of the tokens that a preempted choice had drawn; returns how many (0: in flight, or failed)."""
        group = self._running.catching_up[sequence]
        if sequence.num_in_flight:
            return 0
        num_output, start = len(sequence.output_ids), sequence.num_computed
        num_known = group.num_prompt + num_output
        stop = min(num_known, start + budget)
        try:
            copy = self._make_writable(sequence, group, start, stop)
        except PoolExhausted:
            self._fail(group, draft, now)
            return 0
        handle = sequence.handle
        token_ids = tuple(sequence.output_ids[start - group.num_prompt : stop - group.num_prompt])
        samples, samplers = ((handle,), (sequence,)) if stop == num_known else ((), ())
        row = PlanRow(handle, token_ids, start, sequence.page_table, samples, num_output, start)
        sequence.num_computed = stop
        sequence.num_in_flight = 1
        if samples:
            self._running.caught_up(sequence)
        draft.works.append(Work(row, sequence, group, samplers, copy))
        return stop - start

    def _decode(self, sequence: Sequence, group: Group) -> Work:
        num_output = len(sequence.output_ids)
        num_known = group.num_prompt + num_output
        placeholder = sequence.num_in_flight > 0
        start = write_from = sequence.num_computed
        token_ids: tuple[int, ...]
        if placeholder:
            assert start == num_known, f"handle {sequence.handle} has unplanned tokens before the one on the device"
            stop, token_ids = start + 1, _ON_DEVICE
        elif start == num_known - 1 and num_output:
            stop, token_ids = num_known, (sequence.output_ids[-1],)
        elif start < num_known:
            stop, token_ids = num_known, tuple(sequence.output_ids[start - group.num_prompt :])
        else:
            # The last step drew nothing: compute the last token again; its KV is there.
            start, stop = num_known - 1, num_known
            token_ids = (sequence.output_ids[-1] if num_output else group.prompt_ids[-1],)
        copy = None
        if write_from < stop:
            if write_from == group.num_prompt or len(sequence.page_table) * group.page_tokens < stop:
                copy = self._make_writable(sequence, group, write_from, stop)
            sequence.num_computed = stop
        handle = sequence.handle
        output_index = num_output + sequence.num_in_flight
        table = sequence.page_table
        row = _made(PlanRow, (handle, token_ids, start, table, (handle,), output_index, write_from, placeholder))
        sequence.num_in_flight += 1
        return _made(Work, (row, sequence, group, (sequence,), copy))

    def _make_writable(self, sequence: Sequence, group: Group, write_from: int, stop: int) -> PageCopy | None:
        """Pages for positions write_from .. stop - 1 that nobody else holds."""
        copy = None
        if write_from == group.num_prompt:
            copy = group.unshare(sequence, write_from, self._pool)
        if len(sequence.page_table) * group.page_tokens < stop:
            group.grow(sequence, stop)
        return copy

    def _fail(self, group: Group, draft: StepDraft, now: float) -> None:
        """End the response; rows of its other choices are not run."""
        self._running.end_all(group, "kv_exhausted", now)
        draft.works = [work for work in draft.works if work.group is not group]
