"""A simulated pipeline against a real one: two stages on this host's CPU, one prompt in chunks.

The simulator is told how long each chunk takes in each stage when no other is in flight, brought to the stages' totals
with two in flight (two busy cores share their memory), and what a plan takes outside of its stages. How much of their
time the stages wait for each other is its own finding.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.engine_driver import Drive
from benchmarks.report import Figure
from headrace.v1.prefix_chain import hash_block
from headrace_sim.clock import Clock
from headrace_sim.compiled import plain_environment
from headrace_sim.hand_offs import HandOffs
from headrace_sim.job import Job
from headrace_sim.pipelined import PipelinedReplica
from headrace_sim.replica import Make
from headrace_sim.stage_timer import Pipeline
from headrace_sim.step_timer import FittedTimer
from headrace_worker.build import build_runner
from headrace_worker.config import WorkerConfig
from headrace_worker.execution.runner import GroupTimes
from headrace_worker.perf.step_model import StepModel
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.request import Request
from headrace_worker.scheduling.scheduler import Scheduler
from headrace_workload.arrival import Arrival

MODEL = "smollm2-135m-instruct"
NUM_STAGES, NUM_PROMPT, CHUNK = 2, 512, 64
NUM_ROUNDS = 5
FIRST_ID, LAST_ID = 17, 49_151


@dataclass(frozen=True)
class Run:
    """One prompt: seconds of each chunk in each stage, and in all; the bubble as a worker publishes it."""

    stages_s: tuple[tuple[float, ...], ...]
    took_s: float
    bubble: float

    @property
    def totals_s(self) -> list[float]:
        return [sum(each) for each in zip(*self.stages_s, strict=True)]


class Measured:
    """Chunks by what was measured of them, by where they begin."""

    def __init__(self, by_start: dict[int, list[float]]) -> None:
        self._by_start = by_start

    def stages_s(self, chunks: Sequence[tuple[int, int]], num_decodes: int, num_context_tokens: int) -> list[float]:
        ((_, start),) = chunks
        return self._by_start[start]


def pipeline_figures() -> list[Figure]:
    """In a process with nothing compiled, for its ranks send each other plans."""
    command = [sys.executable, "-m", "benchmarks.simulator_pipeline"]
    done = subprocess.run(command, env=plain_environment(), check=True, stdout=subprocess.PIPE, text=True)
    return [Figure(**row) for row in json.loads(done.stdout.splitlines()[-1])]


def _compare() -> list[Figure]:
    with _runner() as (config, runner):
        chance = random.Random(3)
        rounds = [(_measure(config, runner, chance, 1), _measure(config, runner, chance, 2)) for _ in range(NUM_ROUNDS)]
    serial = statistics.median(alone.bubble for alone, _ in rounds)
    found = [(both.bubble, *_simulate(alone, both), both.took_s) for alone, both in rounds]
    measured, simulated = (statistics.median(each[index] for each in found) for index in (0, 1))
    off = statistics.median(abs(run_s / took_s - 1) for _, _, run_s, took_s in found)
    name = f"{NUM_STAGES} stages on a CPU, a prompt of {NUM_PROMPT} in chunks of {CHUNK}"
    shown = f"measured {measured:.3f}, simulated {simulated:.3f}; one chunk at a time {serial:.3f}"
    return [
        Figure(f"{name}: bubble, simulated less measured", abs(simulated - measured), 0.05, baseline=shown),
        Figure(f"{name}: time to the first token, relative error", off, 0.1),
    ]


@contextmanager
def _runner() -> Iterator[tuple[WorkerConfig, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        where = {"service_token_file": Path(folder) / "token", "state_dir": Path(folder), "source": MODEL}
        sizes = {"pp": NUM_STAGES, "threads": 1, "num_pages": 512, "max_chunk_tokens": CHUNK}
        settings: dict[str, Any] = {**where, **sizes}
        config = WorkerConfig(**settings)
        runner: Any = build_runner(config, lambda text, share: None)
        runner.warm_up(lambda text, share: None)
        try:
            yield config, runner
        finally:
            runner.shut()


def _measure(config: WorkerConfig, runner: Any, chance: random.Random, depth: int) -> Run:
    """With `depth` plans in flight. Each stage's own account of its work is in the group's log."""
    drive = Drive(config, runner)
    limits = drive.engine.scheduler.limits
    drive.engine.scheduler = Scheduler(replace(limits, depth=depth), hash_block)
    log = runner._steps._ranks.log
    drive.submit([chance.randint(FIRST_ID, LAST_ID) for _ in range(NUM_PROMPT)], 1)
    times, stages = GroupTimes(), []
    before = [log.line(rank).busy_ns for rank in range(NUM_STAGES)]
    while drive.engine.has_work:
        output = drive.engine.step()
        after = [log.line(rank).busy_ns for rank in range(NUM_STAGES)]
        stages.append(tuple((new - old) / 1e9 for new, old in zip(after, before, strict=True)))
        times, before = times + output.times if output is not None else times, after
    return Run(tuple(stages), (times.busy_s + times.idle_s) / NUM_STAGES, times.idle_s / (times.busy_s + times.idle_s))


def _simulate(alone: Run, both: Run) -> tuple[float, float]:
    """The bubble and the seconds to the first token."""
    factors = [new / old for new, old in zip(both.totals_s, alone.totals_s, strict=True)]
    chunks = [[time * factor for time, factor in zip(each, factors, strict=True)] for each in alone.stages_s]
    outside_s = (alone.took_s - sum(alone.totals_s)) / len(chunks)
    timer = Measured({index * CHUNK: each for index, each in enumerate(chunks)})
    limits = Limits(512, LAST_ID + 1, max_chunk_tokens=CHUNK, depth=NUM_STAGES, caches_prefixes=False)
    stages = Pipeline(timer, NUM_STAGES, outside_s, host_computes=True)
    whole = FittedTimer(StepModel((0.0,) * 6, 256))
    clock, make = Clock(), Make(limits, whole, hash_block, pipeline=stages)
    hand_offs = HandOffs(clock, {}, lambda replica_id: None)
    replica = PipelinedReplica("r", "p", make, clock, lambda job: None, hand_offs)
    job = Job(Arrival(0, 0.0, "m", NUM_PROMPT, 1, 1, ()), "chat", handle=1, num_left=1)
    replica.submit(job, Request(1, "1", 1, array("I", [FIRST_ID] * NUM_PROMPT), 1))
    clock.run()
    assert job.first_s is not None, "the prompt was computed"
    return replica.bubble, job.first_s


if __name__ == "__main__":
    print(json.dumps([asdict(figure) for figure in _compare()]))
