"""Sends requests when they are due, whatever became of those before: an open loop. Knows no server."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace_bench.outcome import Outcome

T = TypeVar("T")

# A request that was sent this much later than it was due is one that the client itself delayed.
LATE_S = 0.1


@dataclass(frozen=True)
class Due(Generic[T]):
    """Something to send, and when: seconds from the start."""

    at_s: float
    number: int
    model: str
    what: T


@dataclass
class Progress:
    """Counts for people who watch."""

    num_sent: int = 0
    num_ended: int = 0
    num_failed: int = 0
    num_running: int = 0


@dataclass
class Run:
    """What a load did; `num_late` requests were sent more than LATE_S after they were due.

    One that was cut short has the outcomes up to then; `num_dropped` requests ran and are not among them.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    elapsed_s: float = 0.0
    cut_short: bool = False
    num_dropped: int = 0

    @property
    def num_late(self) -> int:
        return sum(one.sent_s - one.due_s > LATE_S for one in self.outcomes)


async def drive(
    dues: Iterable[Due[T]],
    send: Callable[[T, Outcome, float], Awaitable[None]],
    progress: Progress,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Sends all and waits for all. `send` gets what is due, its outcome to fill, and the clock's reading at the start.

    When the caller is cancelled, what runs is dropped and what has ended is the result.
    """
    run, tasks, start_s = Run(), set[asyncio.Task[None]](), clock()

    async def one(due: Due[T], outcome: Outcome) -> None:
        await send(due.what, outcome, start_s)
        run.outcomes.append(outcome)
        progress.num_running -= 1
        progress.num_ended += 1
        progress.num_failed += bool(outcome.error)

    try:
        for due in dues:
            await asyncio.sleep(max(0.0, due.at_s - (clock() - start_s)))
            task = asyncio.create_task(one(due, Outcome(due.number, due.model, due.at_s)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            progress.num_sent += 1
            progress.num_running += 1
        while tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        run.cut_short, run.num_dropped = True, len(tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    run.elapsed_s = clock() - start_s
    run.outcomes.sort(key=lambda outcome: outcome.number)
    return run
