"""Which runner and which scheduler a configuration asks for. The one place where torch is imported or not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from headrace_worker.config import ConfigError, WorkerConfig
from headrace_worker.engine import Engine
from headrace_worker.execution.runner import Progress, Runner
from headrace_worker.execution.scripted import ScriptedRunner
from headrace_worker.execution.step_times import StepTimes, measured_prior
from headrace_worker.scheduling.limits import Limits, LimitsError
from headrace_worker.scheduling.prefix import HashBlock
from headrace_worker.scheduling.record import RecordingScheduler
from headrace_worker.scheduling.scheduler import Scheduler


def build_runner(config: WorkerConfig, progress: Progress, on_lost: Callable[[str], None] | None = None) -> Runner:
    """A runner with its model loaded. Raises RunnerError, or ConfigError for what its operator can correct.

    `on_lost` hears, from another thread, why a group of ranks is over.
    """
    if config.engine == "scripted":
        return ScriptedRunner(config)
    from headrace_worker.execution.loading import load_torch_runner

    return load_torch_runner(config, progress, on_lost)


def begin_background(config: WorkerConfig, runner: Runner) -> None:
    """Begin what takes seconds and is not needed to be ready: the first request with a grammar need not wait for it."""
    if config.engine == "scripted":
        return
    from headrace_worker.execution.torch_runner import TorchRunner

    assert isinstance(runner, TorchRunner), f"{config.engine} is served by the torch runner, not by {runner!r}"
    runner.start_grammars()


def build_engine(
    config: WorkerConfig, runner: Runner, hash_block: HashBlock, clock: Callable[[], float] = time.monotonic
) -> Engine:
    """An engine over a runner that has warmed up."""
    description = runner.describe()
    try:
        limits = Limits(
            num_pages=description.num_pages,
            vocab_size=description.vocab_size,
            page_tokens=description.page_tokens,
            max_sequence_tokens=description.max_context,
            max_running=config.max_running,
            max_waiting=config.max_waiting,
            max_step_tokens=config.max_batch_tokens,
            max_chunk_tokens=config.max_chunk_tokens,
            end_token_ids=description.end_token_ids,
            depth=description.depth,
            overlap=description.overlap,
            overrun=config.statistical_overrun,
        )
    except LimitsError as error:
        raise ConfigError(error.field, error.detail) from error
    prior = measured_prior(description.small_step_s, description.large_step_s, description.large_step_tokens)
    times = StepTimes(prior)
    if config.record is None:
        scheduler = Scheduler(limits, hash_block, times)
    else:
        scheduler = RecordingScheduler(limits, hash_block, _open_record(config.record), times)
    return Engine(scheduler, runner, times, clock=clock)


def _open_record(path: Path) -> Callable[[str], object]:
    """What writes a line of a new recording; that of the run before is kept beside it, for it may be the one wanted.

    It has prompts in it: only its owner may read it. Line by line, so that it is whole up to the move that failed.
    """
    try:
        if path.exists():
            path.replace(path.with_name(f"{path.name}.1"))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError("record", f"{path} cannot be written: {error.strerror}") from error
    return lambda line: os.write(fd, f"{line}\n".encode())
