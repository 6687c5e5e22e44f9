"""A torch engine over a small or the default model, driven to its end by hand."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from headrace.v1.prefix_chain import hash_block
from headrace_worker.build import build_engine
from headrace_worker.config import WorkerConfig
from headrace_worker.execution.loading import load_torch_runner
from headrace_worker.execution.runner import TokenLogprob
from headrace_worker.execution.torch_runner import TorchRunner
from headrace_worker.scheduling.events import Accepted, Event, Finished, Tokens
from headrace_worker.scheduling.request import Request, SamplingParams


def load(source: Path, cache: Path, **settings: Any) -> TorchRunner:
    """A runner that has warmed up; one thread, for threads that spin for each other crawl on a busy machine."""
    defaults: dict[str, Any] = {"max_running": 16, "max_batch_tokens": 256, "num_pages": 256, "threads": 1}
    config = WorkerConfig(
        service_token_file=Path("t"), state_dir=cache, engine="torch", source=str(source), **(defaults | settings)
    )
    runner = load_torch_runner(config, lambda text, share: None)
    runner.warm_up(lambda text, share: None)
    return runner


class EngineBench:
    """A fresh engine over a runner; chunk and batch may differ from the runner's own configuration."""

    def __init__(self, runner: TorchRunner, **settings: Any) -> None:
        config = WorkerConfig(**{**vars(runner._config), **settings})
        self.engine = build_engine(config, runner, hash_block)
        self.events: list[Event] = []
        self._next = 1

    def submit(self, ids: Sequence[int], max_output: int, n: int = 1, **sampling: Any) -> int:
        handle, self._next = self._next, self._next + n
        params = SamplingParams(**({"temperature": 0.0, "ignore_eos": True} | sampling))
        self.engine.submit(Request(handle, f"r{handle}", 1, array("I", ids), max_output, n, params))
        return handle

    def step(self) -> None:
        output = self.engine.step()
        if output is not None:
            assert output.imbalances == ()
            self.events += output.events

    def run(self) -> None:
        while self.engine.has_work:
            self.step()
        assert self.engine.scheduler.pool.num_held == 0

    def ids(self, handle: int) -> list[int]:
        return [t for e in self.events if isinstance(e, Tokens) and e.handle == handle for t in e.token_ids]

    def logprobs(self, handle: int) -> list[TokenLogprob]:
        entries = [e.logprobs for e in self.events if isinstance(e, Tokens) and e.handle == handle]
        return [entry for each in entries for entry in each or () if isinstance(entry, TokenLogprob)]

    def accepted(self, handle: int) -> Accepted:
        (event,) = (e for e in self.events if isinstance(e, Accepted) and e.handle == handle)
        return event

    def finished(self, handle: int) -> Finished:
        (event,) = (e for e in self.events if isinstance(e, Finished) and e.handle == handle)
        return event


def poison(runner: TorchRunner, token_id: int) -> None:
    """From now on the model's embedding of one id is NaN."""
    weight = runner._loaded.model.model.embed_tokens.weight
    with torch.inference_mode():
        weight[token_id] = float("nan")
