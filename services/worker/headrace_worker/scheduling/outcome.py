"""What a step's results mean: tokens appended, choices ended by stop or length, failures kept to their response.

Knows sequences and results, not how the next step is planned.
"""

from __future__ import annotations

from headrace_worker.scheduling.blocks import PagePool
from headrace_worker.scheduling.composer import Work
from headrace_worker.scheduling.events import Event, Progress, Tokens
from headrace_worker.scheduling.fairness import OUTPUT_TOKEN_COST, VirtualTokens
from headrace_worker.scheduling.group import Group
from headrace_worker.scheduling.plan import ResultRow, StepResult
from headrace_worker.scheduling.request import HandOff, Sequence, SequenceState
from headrace_worker.scheduling.running import RunningSet
from headrace_worker.scheduling.statistical import StatisticalClass

_FINISHED = SequenceState.FINISHED


class Outcomes:
    """Applies results to running requests."""

    def __init__(
        self, pool: PagePool, running: RunningSet, fairness: VirtualTokens, statistical: StatisticalClass
    ) -> None:
        self._pool = pool
        self._statistical = statistical
        self._running = running
        self._fairness = fairness
        self._events: list[Event] = running.events

    def apply(self, works: tuple[Work, ...], result: StepResult, now: float) -> None:
        """Results of the works of one step. Results of choices that ended meanwhile are late and count for nobody."""
        by_handle = {row.handle: row for row in result.rows}
        errors = {row.handle: row.error for row in result.rows if row.error is not None}
        for work in works:
            _, holder, group, samplers, _ = work
            holder.num_in_flight -= 1
            if holder is group.prompt:
                for sequence in samplers:
                    sequence.num_in_flight -= 1
            if holder.state is _FINISHED or not group.live:
                continue
            error = self._error(work, errors) if errors else None
            if error is not None:
                self._running.end_all(group, error, now)
            else:
                self._apply_work(work, by_handle, now)

    def _apply_work(self, work: Work, by_handle: dict[int, ResultRow], now: float) -> None:
        row, holder, group, samplers, _ = work
        # Before the tokens, which may end the group and with it the hold on these pages.
        num_written = row.start + len(row.token_ids)
        if num_written // group.page_tokens > holder.num_published and not group.is_suspended:
            group.publish(holder, row.page_table, num_written, self._pool)
        if not row.samples and holder is group.prompt and not group.num_preempted:
            self._events.append(Progress(group.live[0].handle, num_written))
        if group.request.hand_off is HandOff.SEND and num_written == group.num_prompt:
            self._running.end_all(group, "prefilled", now)
            return
        for sequence in samplers:
            drawn = by_handle.get(sequence.handle)
            if drawn is not None and drawn.token_ids and sequence.state is not _FINISHED:
                self._take(group, sequence, drawn, now)

    @staticmethod
    def _error(work: Work, errors: dict[int, str]) -> str | None:
        """The reason for which a live choice of this row, or a prompt that draws nothing yet, failed."""
        live = [sequence.handle for sequence in work.samplers if sequence.state is not _FINISHED]
        return next((errors[handle] for handle in live or (work.row.handle,) if handle in errors), None)

    def _take(self, group: Group, sequence: Sequence, drawn: ResultRow, now: float) -> None:
        """Append what was drawn up to the first end; what lies behind it was never asked for."""
        request, output_ids = group.request, sequence.output_ids
        token_ids, logprobs, reason = drawn.token_ids, drawn.logprobs, None
        if len(output_ids) + len(token_ids) < request.max_output and group.ends.isdisjoint(token_ids):
            output_ids.extend(token_ids)
            if drawn.complete:
                reason = "stop"
        else:
            num_before = len(output_ids)
            reason = self._take_to_end(group, output_ids, drawn)
            num_taken = len(output_ids) - num_before
            if num_taken < len(token_ids):
                token_ids = token_ids[:num_taken]
                logprobs = None if logprobs is None else logprobs[:num_taken]
        # As `Tokens(…)`, without the call of a named tuple's own `__new__`: this is made once per token.
        self._events.append(tuple.__new__(Tokens, (sequence.handle, token_ids, logprobs)))
        self._fairness.charge(request.fair_key, OUTPUT_TOKEN_COST * len(token_ids), request.weight)
        if sequence.last_token_s is None:
            sequence.first_token_s = now
        elif now - sequence.last_token_s > sequence.worst_gap_s:
            sequence.worst_gap_s = now - sequence.last_token_s
        sequence.last_token_s = now
        if reason is not None:
            self._statistical.note_end(group, sequence)
            self._running.end(group, sequence, reason, now)

    @staticmethod
    def _take_to_end(group: Group, output_ids: list[int], drawn: ResultRow) -> str | None:
        """Token by token, where one of them may end it; the reason if one did."""
        min_tokens, num_all = group.request.sampling.min_tokens, len(output_ids) + len(drawn.token_ids)
        for token_id in drawn.token_ids:
            output_ids.append(token_id)
            is_last = len(output_ids) == num_all
            if (token_id in group.ends and len(output_ids) > min_tokens) or (drawn.complete and is_last):
                return "stop"
            if len(output_ids) == group.request.max_output:
                return "length"
        return None
