"""Our engine without its service: requests in, the time of every token out. Steps are taken by hand, in this thread."""

import random
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.v1.prefix_chain import hash_block
from headrace_worker.build import build_engine, build_runner
from headrace_worker.config import WorkerConfig
from headrace_worker.execution.runner import Runner
from headrace_worker.scheduling.events import Accepted, Refused, Tokens
from headrace_worker.scheduling.request import Request, SamplingParams

# Ids below this are control tokens of the default model.
FIRST_PLAIN_ID = 17


class OwnModel:
    """A model that has been loaded and warmed up once; engines over it are cheap."""

    def __init__(self, source: str, state_dir: Path) -> None:
        self.config = WorkerConfig(service_token_file=state_dir / "token", state_dir=state_dir, source=source)
        self.runner: Runner = build_runner(self.config, lambda text, share: None)
        self.runner.warm_up(lambda text, share: None)
        self.vocab_size = self.runner.describe().vocab_size

    def start(self, **settings: Any) -> "Drive":
        """A fresh engine: nothing cached, nothing learned; `settings` replace those of the configuration."""
        return Drive(replace(self.config, **settings), self.runner)

    def random_prompt(self, chance: random.Random, num_tokens: int) -> list[int]:
        return [chance.randrange(FIRST_PLAIN_ID, self.vocab_size) for _ in range(num_tokens)]


class Drive:
    """One engine under a load. `times[handle]` are the moments at which its tokens came, in seconds."""

    def __init__(self, config: WorkerConfig, runner: Runner) -> None:
        self.engine = build_engine(config, runner, hash_block)
        self.times: dict[int, list[float]] = {}
        self.ids: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}

    def submit(self, ids: list[int], num_out: int, inter_token_s: float | None = None) -> int:
        """Greedy, exactly `num_out` tokens; returns the handle."""
        handle = len(self.times) + 1
        self.times[handle], self.ids[handle] = [], []
        request = Request(
            handle=handle,
            response_id=f"r{handle}",
            attempt=1,
            prompt_ids=array("I", ids),
            max_output=num_out,
            sampling=SamplingParams(temperature=0.0, ignore_eos=True),
            inter_token_s=inter_token_s,
            fair_key=f"tenant{handle}",
        )
        self.engine.submit(request)
        return handle

    def step(self) -> None:
        output = self.engine.step()
        now = time.perf_counter()
        assert output is None or not output.imbalances, "the books do not balance"
        for event in output.events if output is not None else ():
            assert not isinstance(event, Refused), f"a request of the benchmark was refused: {event}"
            if isinstance(event, Tokens):
                self.times[event.handle].append(now)
                self.ids[event.handle].extend(event.token_ids)
            elif isinstance(event, Accepted):
                self.cached[event.handle] = event.cached_tokens

    def run_until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert self.engine.has_work, "the engine is idle before the load is done"
            self.step()

    def run(self) -> float:
        """To the end of everything; the seconds that it took."""
        started_s = time.perf_counter()
        while self.engine.has_work:
            self.step()
        return time.perf_counter() - started_s
