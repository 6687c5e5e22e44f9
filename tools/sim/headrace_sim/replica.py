"""One replica: the production scheduler, stepped by the virtual clock. What a step takes is the timer's word.

    loading --start_up_s--> ready --drain--> draining --idle--> gone        (killed: gone at once)

Fast-forward: while nobody enters or leaves, steps differ only in the length of contexts, so that k of them are one
plan whose rows get k tokens each. A jump ends where the first sequence ends; an arrival, a deadline or a kill cuts it
at the end of the step that is running then. What is skipped is only the planning of identical batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from headrace_sim.clock import Clock
from headrace_sim.job import Job
from headrace_sim.optimism import NoForesight
from headrace_sim.stage_timer import Pipeline
from headrace_sim.step_timer import FittedTimer, StepTimer, load_of
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.chunking import StepTimePredictor
from headrace_worker.scheduling.events import Accepted, Event, Finished, PagesWanted, Refused, Tokens
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.plan import PageExport, Plan, ResultRow, StepResult
from headrace_worker.scheduling.prefix import HashBlock
from headrace_worker.scheduling.request import Request
from headrace_worker.scheduling.scheduler import Scheduler

State = Literal["loading", "ready", "draining", "gone"]
END_ID = 1
_FILLER_ID = 2
# An id is looked up, not made, for every token.
_FILLERS = tuple((_FILLER_ID,) * count for count in range(1025))
_MOST_JUMP = 1024


@dataclass(frozen=True)
class Make:
    """What all replicas of a pool are made of. `predictor` bounds chunks where requests have inter-token budgets.

    `plans_ahead`: the engine makes the next plan while a step runs, so that who comes in between waits for one more.
    """

    limits: Limits
    timer: StepTimer | FittedTimer
    hash_block: HashBlock
    predictor: StepTimePredictor | None = None
    fast_forward: bool = False
    static_batching: bool = False
    plans_ahead: bool = False
    optimistic: bool = False
    pipeline: Pipeline | None = None


@dataclass(slots=True)
class Step:
    """The plan that runs: `num_steps` of it, the first taking `first_s` and each next one `more_s` longer."""

    plan: Plan
    started_s: float
    num_steps: int
    first_s: float
    more_s: float
    number: int

    def end_s(self, num_steps: int) -> float:
        return self.started_s + num_steps * self.first_s + self.more_s * num_steps * (num_steps - 1) / 2

    def steps_until(self, now: float) -> int:
        """Steps that are over or running at `now`: at least one, at most all."""
        low, high = 1, self.num_steps
        while low < high:
            middle = (low + high) // 2
            if self.end_s(middle) >= now:
                high = middle
            else:
                low = middle + 1
        return low


class Transfers(Protocol):
    """Who moves pages between replicas."""

    def wanted(self, decode: "Replica", job: Job, event: PagesWanted) -> None: ...

    def exported(self, export: PageExport) -> None: ...

    def ended(self, handle: int, reason: str) -> None: ...


class Replica:
    """`on_ended` is told of every job that ended here or was refused; the job says how."""

    def __init__(
        self,
        replica_id: str,
        pool: str,
        make: Make,
        clock: Clock,
        on_ended: Callable[[Job], None],
        transfers: Transfers,
    ) -> None:
        self.id, self.pool, self.make = replica_id, pool, make
        self.state: State = "loading"
        self.started_s = clock.now
        self.ready_s: float | None = None
        self.gone_s: float | None = None
        lengths = NoForesight() if make.optimistic else None
        self.scheduler = Scheduler(make.limits, make.hash_block, make.predictor, lengths=lengths)
        self.jobs: dict[int, Job] = {}
        # Handles of prompts that are computed for another replica.
        self._sending: set[int] = set()
        self._transfers = transfers
        self.num_steps = 0
        self.busy_s = 0.0
        self.version = 0
        """Rises with whatever a load report would show."""
        self.slowness = 1.0
        self._clock, self._on_ended = clock, on_ended
        self._step: Step | None = None
        self._num_plans = 0
        self._wake_s = float("inf")
        self._next_batch: list[Request] = []

    def submit(self, job: Job, request: Request) -> None:
        """Queue a job; a refusal at the door is told before this returns."""
        self.version += 1
        job.replica_id, job.one_token = self.id, ResultRow(request.handle, _FILLERS[1])
        self.jobs[request.handle] = job
        if self.make.static_batching and not self.scheduler.is_idle:
            self._next_batch.append(request)
            return
        self._soon(self._enter, request)

    def prefill(self, request: Request) -> None:
        """Compute a prompt for another replica; what comes of it is told to `transfers`."""
        self.version += 1
        self._sending.add(request.handle)
        self._soon(self._enter, request)

    def received(self, handle: int) -> None:
        """The pages that a job waits for are here."""
        self._soon(self._change, handle, "received")

    def receive_failed(self, handle: int) -> None:
        """They will not come."""
        self._soon(self._change, handle, "failed")

    def end_transfer(self, handle: int) -> None:
        """Nobody reads the pages of this prompt any more."""
        self._soon(self._change, handle, "ended")

    def abandon(self, handle: int) -> None:
        """Nobody wants this prompt any more."""
        self._soon(self._change, handle, "abandoned")

    def _soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """Now, or where plans are made ahead when the step that runs has ended, behind the plan that is made then."""
        step = self._step
        if self.make.plans_ahead and step is not None:
            self._clock.at(step.end_s(step.steps_until(self._clock.now)), call, *arguments)
        else:
            call(*arguments)

    def _change(self, handle: int, what: Literal["received", "failed", "ended", "abandoned"]) -> None:
        if self.is_gone:
            return
        self.version += 1
        if what == "received":
            self.scheduler.received(handle)
        elif what == "failed":
            self.scheduler.receive_failed(handle, "prefill_lost", self._clock.now)
        elif what == "abandoned":
            self.scheduler.cancel(Cancel(str(handle)))
        if what != "received":
            self.scheduler.end_transfer(handle)
        self._tell(self.scheduler.take_events())
        self._cut()
        self._go_on()
        self._leave_if_idle()

    def _enter(self, request: Request) -> None:
        if request.handle not in self.jobs and request.handle not in self._sending:
            return  # lost with the replica before the engine had heard of it
        self.scheduler.submit(request, self._clock.now)
        if request.handle not in self.scheduler.running.live_handles:
            self._tell(self.scheduler.take_events())
            return
        self._cut()
        self._go_on()

    def become_ready(self) -> None:
        if self.state == "loading":
            self.state, self.ready_s = "ready", self._clock.now

    def drain(self) -> None:
        """Take nothing new; be gone when idle."""
        if self.state in ("loading", "ready"):
            self.state = "draining"
            self._leave_if_idle()

    def kill(self) -> list[Job]:
        """Gone at once; returns the jobs that were here, with the tokens that had left it."""
        if self._step is not None:
            self._account(self._done_steps())
            self._step = None
        self.state, self.gone_s = "gone", self._clock.now
        lost, self.jobs = list(self.jobs.values()), {}
        self._sending.clear()
        return lost

    @property
    def is_gone(self) -> bool:
        return self.state == "gone"

    def _go_on(self) -> None:
        """Plan the next step if none runs."""
        if self._step is not None or self.state == "gone":
            return
        plan = self._plan()
        if plan is None:
            self._sleep()
            return
        self._num_plans += 1
        self._step = self._timed(plan, self._clock.now)
        self._clock.at(self._step.end_s(self._step.num_steps), self._end_step, self._num_plans, self._step.num_steps)

    def _plan(self) -> Plan | None:
        """The next plan, if there is something to compute now."""
        now = self._clock.now
        self.version += 1
        if self._next_batch and self.scheduler.is_idle:
            most = self.make.limits.max_running
            batch, self._next_batch = self._next_batch[:most], self._next_batch[most:]
            for request in batch:
                self.scheduler.submit(request, now)
        plan = self.scheduler.plan(now)
        if self.scheduler.running.events:
            self._tell(self.scheduler.take_events())
        return plan

    def _timed(self, plan: Plan, now: float) -> Step:
        chunks, num_decodes, num_context = load_of(plan)
        timer = self.make.timer
        first_s = timer.step_s(chunks, num_decodes, num_context) * self.slowness
        num_steps, more_s = 1, 0.0
        if self.make.fast_forward and not chunks:
            num_steps = self._jump(plan)
            if num_steps > 1:
                last_s = timer.step_s((), num_decodes, num_context + num_decodes * (num_steps - 1)) * self.slowness
                more_s = (last_s - first_s) / (num_steps - 1)
        step = Step(plan, now, num_steps, first_s, more_s, self._num_plans)
        deadline_s = self.scheduler.next_deadline_s()
        if num_steps > 1 and deadline_s is not None and deadline_s < step.end_s(num_steps):
            step.num_steps = step.steps_until(deadline_s)
        return step

    def _jump(self, plan: Plan) -> int:
        """Steps until the first sequence of this batch ends."""
        jobs, most = self.jobs, _MOST_JUMP
        if self.scheduler.running.statistical:
            # Their pages are promised to nobody: as many steps as surely fit.
            num_pages = self.scheduler.ledger.headroom // len(plan.rows)
            most = min(most, 1 + max(0, num_pages - 1) * self.make.limits.page_tokens)
        # A first token is seen when it comes.
        return min(most, *[jobs[row.handle].num_left if row.output_index else 1 for row in plan.rows])

    def _cut(self) -> None:
        """Somebody came: the jump ends with the step that runs now."""
        step = self._step
        if step is None or step.num_steps == 1:
            return
        num_steps = step.steps_until(self._clock.now)
        if self.make.plans_ahead and step.end_s(num_steps) <= self._clock.now:
            num_steps += 1  # it came between two steps, and the second has begun
        if num_steps < step.num_steps:
            step.num_steps = num_steps
            self._clock.at(step.end_s(num_steps), self._end_step, step.number, num_steps)

    def _end_step(self, number: int, num_steps: int) -> None:
        step = self._step
        if step is None or step.number != number or step.num_steps != num_steps:
            return  # cut short, or killed
        self._step = None
        self.busy_s += self._clock.now - step.started_s
        self._settle(step)
        if num_steps > 1:
            self._settle_jump(num_steps)
        self._leave_if_idle()
        self._go_on()

    def _settle(self, step: Step) -> None:
        """What a plan brought."""
        rows = self._results(step)
        events = self.scheduler.complete(StepResult(step.plan.step, tuple(rows)), self._clock.now)
        self.num_steps += step.num_steps
        for export in step.plan.exports:
            self._transfers.exported(export)
        self._tell(events)

    def _results(self, step: Step) -> list[ResultRow]:
        """The tokens that each row drew, and the jobs' own account of them."""
        now, count = self._clock.now, step.num_steps
        gap_s = step.first_s + step.more_s * (count - 1)
        rows: list[ResultRow] = []
        jobs, fillers = self.jobs, _FILLERS[count]
        for row in step.plan.rows:
            for handle in row.samples:
                job = jobs[handle]
                job.num_left -= count
                if job.num_left == 0 and job.arrival.num_output < job.arrival.max_output:
                    rows.append(ResultRow(handle, (*fillers[:-1], END_ID)))
                elif count == 1 and job.one_token is not None:
                    rows.append(job.one_token)
                else:
                    rows.append(ResultRow(handle, fillers))
                if job.first_s is None:
                    job.first_s = now
                elif count > 1:
                    job.worst_gap_s = max(job.worst_gap_s, gap_s)
                elif now - job.last_s > job.worst_gap_s:
                    job.worst_gap_s = now - job.last_s
                job.last_s = now
        return rows

    def _settle_jump(self, num_steps: int) -> None:
        """The KV of a jump's tokens was written in it: the next step computes one token of each sequence, not k."""
        for sequence, group in self.scheduler.running.decoding.items():
            behind = sequence.num_tokens - 1
            if sequence.num_computed < behind:
                group.grow(sequence, behind)
                sequence.num_computed = behind

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Tokens):
                continue  # the job has counted them
            if isinstance(event, PagesWanted):
                self._transfers.wanted(self, self.jobs[event.handle], event)
                continue
            if event.handle in self._sending:
                if isinstance(event, Finished | Refused):
                    self._sending.discard(event.handle)
                    self._transfers.ended(event.handle, event.reason)
                continue
            if isinstance(event, Finished):
                job = self.jobs.pop(event.handle)
                job.ending, job.reason = event.kind, event.reason
                assert job.num_generated == event.num_generated, "the scheduler and the job count the same tokens"
            elif isinstance(event, Refused):
                job = self.jobs.pop(event.handle)
                job.ending, job.reason = "refused", event.reason
            elif isinstance(event, Accepted):
                job = self.jobs[event.handle]
                job.accepted_s = self._clock.now
                job.num_cached = event.cached_tokens
                continue
            else:
                continue
            job.ended_s = self._clock.now
            self._on_ended(job)

    def _sleep(self) -> None:
        """Nothing can be computed: look again when a deadline comes."""
        deadline_s = self.scheduler.next_deadline_s()
        if deadline_s is None or deadline_s == self._wake_s:
            return
        self._wake_s = deadline_s
        self._clock.at(deadline_s, self._wake, deadline_s)

    def _wake(self, at_s: float) -> None:
        if self._wake_s == at_s:
            self._wake_s = float("inf")
        self._go_on()
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if self._step is not None or self.state != "draining":
            return
        if self.scheduler.is_idle and not self.scheduler.hand_offs.num_open:
            self.state, self.gone_s = "gone", self._clock.now

    def _done_steps(self) -> int:
        step = self._step
        assert step is not None, "a step runs"
        num_steps = step.steps_until(self._clock.now)
        return num_steps if step.end_s(num_steps) <= self._clock.now else num_steps - 1

    def _account(self, num_steps: int) -> None:
        """Tokens of the steps of a jump that were over when the replica died had been sent."""
        step = self._step
        if step is None or num_steps == 0:
            return
        for row in step.plan.rows:
            for handle in row.samples:
                job = self.jobs[handle]
                job.num_left -= num_steps
                job.first_s = step.end_s(num_steps) if job.first_s is None else job.first_s
                job.last_s = step.end_s(num_steps)
