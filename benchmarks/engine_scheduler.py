"""What the pure scheduler costs: one plan with 256 choices running and 2,000 requests waiting, beside an empty loop."""

import time
from statistics import median
from typing import NamedTuple

from headrace.v1.prefix_chain import hash_block
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.plan import ResultRow, StepResult
from headrace_worker.scheduling.request import Request, SamplingParams
from headrace_worker.scheduling.scheduler import Scheduler

NUM_RUNNING, NUM_WAITING, NUM_TENANTS = 256, 2000, 16
NUM_PROMPT, NUM_OUTPUT = 64, 2048
NUM_STEPS = 300
NUM_EMPTY = 100_000


class SchedulerCost(NamedTuple):
    """Medians, in milliseconds; `empty_loop_ms` is what this machine takes for 100,000 empty turns."""

    plan_ms: float
    complete_ms: float
    empty_loop_ms: float


def measure() -> SchedulerCost:
    """Every running choice decodes in every step, and the waiting room stays full."""
    scheduler = _fill()
    plans, completes, empties = [], [], []
    for step in range(NUM_STEPS):
        now = 10.0 + step / 100
        started = time.thread_time()
        plan = scheduler.plan(now)
        planned = time.thread_time()
        assert plan is not None and len(plan.rows) == NUM_RUNNING, "every choice has a row"
        assert len(scheduler.room) == NUM_WAITING, "nobody leaves the waiting room"
        result = StepResult(plan.step, tuple(ResultRow(row.handle, (1,)) for row in plan.rows))
        told = time.thread_time()
        scheduler.complete(result, now)
        completes.append(time.thread_time() - told)
        plans.append(planned - started)
        if step % 30 == 0:
            empties.append(_empty_loop_s())
    return SchedulerCost(*(1000 * median(values) for values in (plans, completes, empties)))


def _fill() -> Scheduler:
    pages = NUM_RUNNING * (-(-(NUM_PROMPT + NUM_OUTPUT) // 16))
    limits = Limits(
        num_pages=pages,
        vocab_size=1000,
        max_running=NUM_RUNNING,
        max_waiting=NUM_WAITING,
        max_step_tokens=NUM_RUNNING * NUM_PROMPT + 16,
        max_chunk_tokens=NUM_RUNNING * NUM_PROMPT,
    )
    scheduler = Scheduler(limits, hash_block)
    for handle in range(NUM_RUNNING + NUM_WAITING):
        if handle == NUM_RUNNING:
            plan = scheduler.plan(1.0)
            assert plan is not None and len(plan.rows) == NUM_RUNNING, "the first requests enter at once"
            scheduler.complete(StepResult(plan.step, tuple(ResultRow(row.handle, (1,)) for row in plan.rows)), 1.0)
        ids = tuple((handle * 31 + position) % 1000 for position in range(NUM_PROMPT))
        sampling = SamplingParams(ignore_eos=True)
        key = f"tenant{handle % NUM_TENANTS}"
        scheduler.submit(Request(handle, f"r{handle}", 1, ids, NUM_OUTPUT, sampling=sampling, fair_key=key), 1.0)
    return scheduler


def _empty_loop_s() -> float:
    started = time.thread_time()
    for _ in range(NUM_EMPTY):
        pass
    return time.thread_time() - started
