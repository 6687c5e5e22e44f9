"""The loop's two moves: make the next plan, take in the result of the oldest one in flight.

    submit, cancel --> plan(now) -> Plan --> [execution] --> complete(StepResult, now) -> events

An orchestrator only: whether something fits, who is next, what a row is and what a result means belong to its owners.
Knows no clock but the caller's and no execution; several plans may be in flight, and results come in order.
"""

from __future__ import annotations

from collections import deque

from headrace_worker.scheduling.admission import Admission
from headrace_worker.scheduling.blocks import PagePool
from headrace_worker.scheduling.cancel import Cancel, Cancels
from headrace_worker.scheduling.chunking import Beside, StepTimePredictor, prefill_budget
from headrace_worker.scheduling.composer import Composer, StepDraft, Work
from headrace_worker.scheduling.entrance import Entrance
from headrace_worker.scheduling.events import Event
from headrace_worker.scheduling.fairness import VirtualTokens
from headrace_worker.scheduling.hand_off import HandOffs
from headrace_worker.scheduling.ledger import Ledger
from headrace_worker.scheduling.lengths import LengthDistribution
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.outcome import Outcomes
from headrace_worker.scheduling.page_events import PageEventLog
from headrace_worker.scheduling.plan import Plan, StepResult
from headrace_worker.scheduling.prefix import HashBlock
from headrace_worker.scheduling.request import Request
from headrace_worker.scheduling.running import RunningSet
from headrace_worker.scheduling.statistical import StatisticalClass
from headrace_worker.scheduling.waiting import WaitingRoom


class Scheduler:
    """One replica's requests, from submit to their one ending. Not thread-safe: one loop drives it.

    `hash_block` is the prefix chain's function; `predictor` bounds prompt chunks by the inter-token budgets (None:
    only by their fixed limit); `epoch` numbers the life of the page cache; `lengths` is what is known of outputs (None:
    nothing yet).
    """

    def __init__(
        self,
        limits: Limits,
        hash_block: HashBlock,
        predictor: StepTimePredictor | None = None,
        epoch: int = 1,
        lengths: LengthDistribution | None = None,
    ) -> None:
        self.limits = limits
        self.pool = PagePool(limits.num_pages, PageEventLog(epoch))
        self.ledger = Ledger(self.pool)
        self.running = RunningSet(self.pool)
        fairness = VirtualTokens()
        self.room = WaitingRoom(limits.max_waiting, limits.patience_s, fairness)
        self._statistical = StatisticalClass(limits, self.ledger, self.running, lengths or LengthDistribution())
        admission = Admission(limits, self.ledger, hash_block, self._statistical)
        self._entrance = Entrance(limits, self.room, admission, self.running)
        self._cancels = Cancels(self._entrance, self.running)
        self.hand_offs = HandOffs(self.pool, self.running)
        self._composer = Composer(self.pool, self.running, self.hand_offs, limits.overlap, limits.depth)
        self._outcomes = Outcomes(self.pool, self.running, fairness, self._statistical)
        self._predictor = predictor
        self._in_flight: deque[tuple[int, tuple[Work, ...]]] = deque()
        self._next_step = 0

    @property
    def num_in_flight(self) -> int:
        """Plans whose results have not come."""
        return len(self._in_flight)

    @property
    def is_idle(self) -> bool:
        return not (self._in_flight or self.room or self.running.num_choices or self.running.suspended)

    def submit(self, request: Request, now: float) -> None:
        """Queue a request, or refuse it by an event. Raises HandleInUse if a live choice has one of its handles."""
        self._entrance.submit(request, now)

    def cancel(self, cancel: Cancel) -> None:
        """End a response or a choice at the next move."""
        self._cancels.add(cancel)

    def next_deadline_s(self) -> float | None:
        """When `plan` should be called even if nothing happens before, on the caller's clock."""
        return self.room.next_deadline_s()

    def plan(self, now: float) -> Plan | None:
        """The next step, or None when nothing can be computed before a result or a new request comes."""
        self._cancels.apply(now)
        self._entrance.expire(now)
        if self.running.statistical:
            self._entrance.clear_way(now)
            self._statistical.secure_step()
        draft = StepDraft()
        self._composer.add_decodes(draft, now)
        if self.running.prefilling or self.room or self.running.catching_up or self.running.suspended:
            self._add_prefills(draft, now)
        if not draft.works:
            return None
        for group in draft.admitted:
            group.announced = bool(group.live)
        step, self._next_step = self._next_step, self._next_step + 1
        self._in_flight.append((step, tuple(draft.works)))
        return draft.plan(step, self.running.take_released(), self.hand_offs.take_imports())

    def complete(self, result: StepResult, now: float) -> list[Event]:
        """Take in the result of the oldest plan in flight; returns all events since the last time."""
        self._cancels.apply(now)
        assert self._in_flight, f"step {result.step} was never planned"
        step, works = self._in_flight.popleft()
        assert step == result.step, f"the result of step {step} is due, not of step {result.step}"
        self._outcomes.apply(works, result, now)
        return self.take_events()

    def take_events(self) -> list[Event]:
        """Events since the last time, in order (for when no step is in flight)."""
        events = list(self.running.events)
        self.running.events.clear()
        return events

    def clear_cache(self, epoch: int) -> None:
        """Forget all cached pages; a new epoch of page events begins."""
        self.pool.clear(epoch)

    def received(self, handle: int) -> None:
        """The pages that a request waited for are there; if it has ended they only leave quarantine."""
        self.hand_offs.received(handle)

    def receive_failed(self, handle: int, reason: str, now: float) -> None:
        """They will not come; they stay in quarantine until `end_transfer`."""
        self.hand_offs.fail(handle, reason, now)

    def end_transfer(self, handle: int) -> None:
        """No other machine reads or writes the request's pages any more. Idempotent."""
        self.hand_offs.end(handle)

    def _add_prefills(self, draft: StepDraft, now: float) -> None:
        """Prompts under way first, in the order they entered; then new ones while there is budget left for them."""
        budget = self._prefill_budget(draft)
        for sequence in list(self.running.catching_up):
            if budget <= 0:
                return
            if sequence in self.running.catching_up:
                budget -= self._composer.add_catch_up(draft, sequence, budget, now)
        for group in list(self.running.prefilling):
            if budget <= 0:
                return
            if not group.announced and group not in draft.admitted:
                draft.admitted.append(group)
            budget -= self._composer.add_prefill(draft, group, budget, now)
        while budget > 0 and self.room:
            admitted = self._entrance.admit_next(now)
            if admitted is None:
                break
            if admitted.live and not self.hand_offs.begin_receive(admitted, now):
                draft.admitted.append(admitted)
                budget -= self._composer.add_prefill(draft, admitted, budget, now)

        while budget > 0 and (resumed := self._statistical.resume_next()) is not None:
            budget -= self._composer.add_prefill(draft, resumed, budget, now)

    def _prefill_budget(self, draft: StepDraft) -> int:
        """Prompt tokens of this step: what the decodes leave, within what their inter-token budget allows."""
        limits = self.limits
        low = limits.page_tokens
        high = max(low, min(limits.max_chunk_tokens, limits.max_step_tokens - draft.num_decode_tokens))
        if self._predictor is None or draft.least_gap_s is None:
            return high
        cached = next((group.prompt.num_computed for group in self.running.prefilling), 0)
        beside = Beside(len(draft.works), draft.context_tokens, cached)
        return prefill_budget(self._predictor, draft.least_gap_s, beside, (low, high))
