"""A machine that runs plans on paper, and a driver that holds the scheduler to its protocol.

The machine's pages hold token ids where a real one holds KV. It reads every row's whole context back through the page
table, so a page that was shared wrongly, freed early, hit inexactly or not copied shows as a wrong context.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from headrace_worker.scheduling.audit import audit
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.events import Accepted, Event, Finished, Refused, Tokens
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.plan import NULL_PAGE, Plan, PlanRow, ResultRow, StepResult
from headrace_worker.scheduling.request import Request
from headrace_worker.scheduling.scheduler import Scheduler

VOCAB_SIZE = 260
END = 257

# (context, choice) -> the drawn ids: none is no progress; a string is an error.
Model: TypeAlias = Callable[[tuple[int, ...], int], "tuple[int, ...] | str"]


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    return hashlib.sha256(parent + b"|" + ",".join(map(str, token_ids)).encode()).digest()


def digest_model(context: tuple[int, ...], choice: int) -> tuple[int, ...]:
    """A byte that depends on the whole context and the choice: any wrong slot changes everything after it."""
    return (hashlib.sha256(repr((context, choice)).encode()).digest()[0],)


def make_limits(**changes: object) -> Limits:
    sizes: dict[str, object] = {
        "num_pages": 64,
        "vocab_size": VOCAB_SIZE,
        "page_tokens": 16,
        "max_sequence_tokens": 4096,
        "max_running": 16,
        "max_waiting": 64,
        "max_step_tokens": 512,
        "max_chunk_tokens": 256,
        "end_token_ids": frozenset({END}),
    }
    return Limits(**(sizes | changes))  # type: ignore[arg-type]


class PaperMachine:
    """Executes plans in order; checks that each row sees exactly the context its sequence has."""

    def __init__(self, page_tokens: int, model: Model) -> None:
        self.page_tokens = page_tokens
        self.model = model
        self.slots: dict[int, list[int | None]] = {}
        self.requests: dict[int, tuple[Request, int]] = {}
        self.outputs: dict[int, list[int]] = {}
        self.last_step = -1

    def execute(self, plan: Plan) -> StepResult:
        assert plan.step == self.last_step + 1
        self.last_step = plan.step
        for handle in plan.released:
            del self.requests[handle], self.outputs[handle]
        for request in plan.admitted:
            for choice in range(request.n):
                assert request.handle + choice not in self.requests
                self.requests[request.handle + choice] = (request, choice)
                self.outputs[request.handle + choice] = []
        # All reads before all writes, as one batched copy does it.
        copied = {copy.target: self._page(copy.source)[: copy.num_tokens] for copy in plan.copies}
        assert len(copied) == len(plan.copies), "two copies write one page"
        for target, ids in copied.items():
            self.slots[target] = ids + [None] * (self.page_tokens - len(ids))
        writes = [write for row in plan.rows for write in self.slots_written(row)]
        assert len(set(writes)) == len(writes), "two rows write one slot"
        for row in plan.rows:
            self._write(row)
        return StepResult(plan.step, tuple(drawn for row in plan.rows for drawn in self._draw(row)))

    def _page(self, page: int) -> list[int | None]:
        return self.slots.setdefault(page, [None] * self.page_tokens)

    def _ids(self, row: PlanRow) -> tuple[int, ...]:
        if row.placeholder:
            assert row.token_ids == (-1,)
            return (self.outputs[row.handle][row.output_index - 1],)
        return row.token_ids

    def slots_written(self, row: PlanRow) -> list[tuple[int, int]]:
        positions = range(max(row.start, row.write_from), row.start + len(row.token_ids))
        slots = [(row.page_table[at // self.page_tokens], at % self.page_tokens) for at in positions]
        assert all(page != NULL_PAGE for page, _ in slots)
        return slots

    def _write(self, row: PlanRow) -> None:
        for position, token_id in enumerate(self._ids(row), row.start):
            if position >= row.write_from:
                self._page(row.page_table[position // self.page_tokens])[position % self.page_tokens] = token_id

    def _draw(self, row: PlanRow) -> list[ResultRow]:
        stop = row.start + len(row.token_ids)
        seen = [self._page(row.page_table[at // self.page_tokens])[at % self.page_tokens] for at in range(stop)]
        drawn: list[ResultRow] = []
        for handle in row.samples or (row.handle,):
            request, choice = self.requests[handle]
            context = (*request.prompt_ids, *self.outputs[handle][: row.output_index])
            assert seen == list(context[:stop]), f"handle {handle} sees another context than its own"
            if handle not in row.samples:
                continue
            assert len(context) == stop, f"handle {handle} samples before its context is complete"
            ids = self.model(context, choice)
            del self.outputs[handle][row.output_index :]
            if isinstance(ids, str):
                # Whatever the device drew: an overlapped row may already be using it.
                self.outputs[handle].append(0)
                drawn.append(ResultRow(handle, error=ids))
                continue
            self.outputs[handle].extend(ids)
            drawn.append(ResultRow(handle, ids))
        return drawn


class Outcome:
    """All that was said about one submit."""

    def __init__(self, request: Request, submitted_s: float) -> None:
        self.request = request
        self.submitted_s = submitted_s
        self.refused: Refused | None = None
        self.accepted: Accepted | None = None
        self.finished: dict[int, Finished] = {}
        self.tokens: list[list[int]] = [[] for _ in range(request.n)]

    @property
    def accepted_s(self) -> float:
        assert self.accepted is not None, f"{self.request.response_id} was not accepted"
        return self.submitted_s + self.accepted.queue_s

    @property
    def is_over(self) -> bool:
        return self.refused is not None or len(self.finished) == self.request.n


class Driver:
    """A scheduler with a machine, a clock and a memory of every outcome. `depth` plans may be in flight."""

    def __init__(self, limits: Limits, model: Model = digest_model, depth: int = 1, **ports: object) -> None:
        self.scheduler = Scheduler(limits, hash_block, **ports)  # type: ignore[arg-type]
        self.machine = PaperMachine(limits.page_tokens, model)
        self.depth = depth
        self.now = 0.0
        self.step_s = 0.01
        self.results: deque[StepResult] = deque()
        self.plans: list[Plan] = []
        self.outcomes: dict[str, Outcome] = {}
        self.by_handle: dict[int, Outcome] = {}
        self.next_handle = 0

    def submit(self, num_prompt: int | Sequence[int], max_output: int, **fields: object) -> Outcome:
        """A prompt given as a number is so many distinct-looking bytes; each call is a new response."""
        handle = self.next_handle
        prompt = (
            tuple((handle * 7 + at * 13) % 256 for at in range(num_prompt))
            if isinstance(num_prompt, int)
            else tuple(num_prompt)
        )
        request = Request(handle, f"r{handle}", 1, prompt, max_output, **fields)  # type: ignore[arg-type]
        self.next_handle += max(1, request.n)
        outcome = self.outcomes[request.response_id] = Outcome(request, self.now)
        for choice in range(request.n):
            self.by_handle[handle + choice] = outcome
        self.scheduler.submit(request, self.now)
        self.note(self.scheduler.take_events())
        return outcome

    def cancel(self, outcome: Outcome, choice: int = -1, reason: str = "client", accepted: int | None = None) -> None:
        self.scheduler.cancel(Cancel(outcome.request.response_id, 0, choice, reason, accepted))

    def launch(self) -> Plan | None:
        """Plan and execute one step; its result waits to be collected."""
        plan = self.scheduler.plan(self.now)
        self.note(self.scheduler.take_events())
        if plan is not None:
            self.plans.append(plan)
            for row in plan.rows:
                # The end of a prompt is written for all choices that draw from it; every other write is for one.
                holders = {self.scheduler.pool.holders(page) for page, _ in self.machine.slots_written(row)}
                expected = {max(1, len(row.samples))}
                request = self.by_handle[row.handle].request
                if request.statistical and row.start + len(row.token_ids) == request.num_prompt:
                    # After a preemption some choices, or all, have drawn from it already.
                    expected = set(range(1, request.n + 1))
                assert holders <= expected, f"handle {row.handle} writes to pages of others"
            self.results.append(self.machine.execute(plan))
        return plan

    def collect(self) -> None:
        """Hand the scheduler the oldest result."""
        self.now += self.step_s
        self.note(self.scheduler.complete(self.results.popleft(), self.now))

    def step(self) -> Plan | None:
        """One turn of the loop: launch, then collect what exceeds the depth (or is all there is)."""
        plan = self.launch()
        if self.results and (plan is None or len(self.results) >= self.depth):
            self.collect()
        elif plan is None:
            self.now += self.step_s
        return plan

    def run(self, max_steps: int = 10_000) -> None:
        """Step until idle, auditing after every step."""
        for _ in range(max_steps):
            if self.scheduler.is_idle:
                return
            self.step()
            self.check()
        raise AssertionError(f"not idle after {max_steps} steps")

    def check(self) -> None:
        assert audit(self.scheduler) == ()

    def note(self, events: list[Event]) -> None:
        for event in events:
            outcome = self.by_handle[event.handle]
            choice = event.handle - outcome.request.handle
            assert outcome.refused is None, f"{event} after a refusal"
            if isinstance(event, Refused):
                assert outcome.accepted is None, f"{event} after acceptance"
                outcome.refused = event
                continue
            if isinstance(event, Accepted):
                assert outcome.accepted is None, f"{event} is the second acceptance"
                outcome.accepted = event
                continue
            assert outcome.accepted is not None, f"{event} before acceptance"
            assert choice not in outcome.finished, f"{event} after the ending"
            if isinstance(event, Tokens):
                outcome.tokens[choice].extend(event.token_ids)
            elif isinstance(event, Finished):
                assert event.choice == choice
                assert event.num_generated == len(outcome.tokens[choice])
                outcome.finished[choice] = event


def expected_tokens(outcome: Outcome, choice: int, model: Model = digest_model) -> list[int]:
    """The tokens of a choice computed with no scheduler at all."""
    context = list(outcome.request.prompt_ids)
    drawn: list[int] = []
    for _ in range(outcome.request.max_output):
        ids = model(tuple(context), choice)
        assert not isinstance(ids, str)
        context.extend(ids)
        drawn.extend(ids)
        if ids[-1] == END:
            break
    return drawn
