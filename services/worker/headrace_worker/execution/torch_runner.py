"""The torch runner: warms up, says what came of it, and sees plans and their grammars through.

What computes the steps is behind `Steps`: this process alone, or a group of them. Knows no request's fate: what a token
ends, and who runs next, is the scheduler's business.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterable

import torch

from headrace_worker.config import WorkerConfig
from headrace_worker.execution.grammars import Grammars
from headrace_worker.execution.known_answers import known_answer
from headrace_worker.execution.loaded import Loaded
from headrace_worker.execution.page_count import count_pages
from headrace_worker.execution.runner import (
    OnPages,
    Opened,
    Opening,
    Progress,
    Ran,
    Rejected,
    Runner,
    RunnerDescription,
)
from headrace_worker.execution.steps import RankSizes, Steps
from headrace_worker.execution.token_mask import TokenMasks
from headrace_worker.execution.warm_up import (
    KNOWN_ANSWER_PAGES,
    check_known_answer,
    check_known_tokens,
    largest_plan,
    smallest_plan,
)
from headrace_worker.models.checkpoint import Checkpoint
from headrace_worker.perf.step import Roofline
from headrace_worker.scheduling.plan import Plan, StepResult
from headrace_worker.scheduling.request import Request


@dataclasses.dataclass(frozen=True)
class Served:
    """What a runner serves: `max_context` is the most tokens of one sequence; `domains` are the devices' fast links.

    `grammars` is None where constraints cannot be served.
    """

    checkpoint: Checkpoint
    max_context: int
    grammars: Grammars | None
    domains: tuple[str, ...] = ()
    roofline: Roofline | None = None


class TorchRunner(Runner):
    """`loaded` is this process's part of the model, `steps` what computes with it."""

    def __init__(self, config: WorkerConfig, loaded: Loaded, served: Served, steps: Steps) -> None:
        self._config, self._loaded, self._steps = config, loaded, steps
        self._checkpoint, self._max_context, self._grammars = served.checkpoint, served.max_context, served.grammars
        self._domains, self._roofline = served.domains, served.roofline
        self._plans: deque[Plan] = deque()
        self._stale: tuple[int, ...] = ()
        self._sizes: list[RankSizes] = []
        self._num_pages = 0
        self._all_reduce: tuple[tuple[int, float], ...] = ()
        self._small_step_s = self._large_step_s = 0.0
        self._large_step_tokens = 1

    @torch.inference_mode()
    def warm_up(self, progress: Progress) -> None:
        config, steps = self._config, self._steps
        largest = largest_plan(config, self._max_context)
        num_pages = max(max(row.page_table) for row in largest.rows)
        steps.allocate(max(num_pages, KNOWN_ANSWER_PAGES))
        if self._grammars is not None:
            progress("grammars", 0.0)
            self._grammars.load()
        progress("smallest step", 0.1)
        self._small_step_s = min(self._run_and_forget(smallest_plan()) for _ in range(3))
        progress("largest step", 0.2)
        with steps.measuring():
            self._large_step_s = self._run_and_forget(largest)
        self._large_step_tokens = sum(len(row.token_ids) for row in largest.rows)
        progress("known answer", 0.7)
        check_known_answer(steps.logits, self._checkpoint.config.vocab_size, self._loaded.dtype)
        known = known_answer(self._checkpoint.name, self._checkpoint.weights.identity)
        if known is not None and self._loaded.dtype == torch.float32:
            check_known_tokens(steps.logits, known, config.page_tokens)
        progress("links", 0.8)
        self._all_reduce = steps.measure_all_reduce()
        progress("memory", 0.9)
        self._sizes = steps.sizes()
        self._num_pages = count_pages(config, self._sizes)
        steps.allocate(self._num_pages)
        progress("done", 1.0)

    def describe(self) -> RunnerDescription:
        assert self._sizes, "warm_up measures what there is"
        checkpoint, config = self._checkpoint, self._config
        page_bytes = sum(rank.page_bytes for rank in self._sizes)
        return RunnerDescription(
            engine="torch",
            model=config.model or checkpoint.name,
            revision=config.revision or checkpoint.revision,
            fingerprint=bytes.fromhex(checkpoint.fingerprint),
            vocab_size=checkpoint.config.vocab_size,
            end_token_ids=frozenset(checkpoint.text.end_token_ids),
            max_context=self._max_context,
            page_tokens=config.page_tokens,
            num_pages=self._num_pages,
            precision=config.precision,
            quantization=self._loaded.quantization,
            kv_bytes_per_token=page_bytes // config.page_tokens,
            weight_bytes=sum(rank.weight_bytes for rank in self._sizes),
            workspace_bytes=sum(rank.workspace_bytes for rank in self._sizes),
            kv_pool_bytes=self._num_pages * page_bytes,
            grammar=self._grammars is not None,
            card=checkpoint.card(config.default_output, self._max_context).to_bytes(),
            small_step_s=self._small_step_s,
            large_step_s=self._large_step_s,
            large_step_tokens=self._large_step_tokens,
            tp=config.tp,
            pp=config.pp,
            depth=self._steps.depth,
            overlap=config.overlaps,
            all_reduce=self._all_reduce,
            images=tuple(self._steps.images()),
            domains=self._domains,
            roofline=self._roofline,
        )

    def open(self, request: Request) -> Opened | Rejected | Opening:
        if request.grammar is None:
            return Opened()
        if self._grammars is None:
            return Rejected("invalid_argument", "grammar", "this engine has no grammars")
        return self._grammars.open(request)

    def close(self, handles: Iterable[int]) -> None:
        if self._grammars is not None:
            self._grammars.close(handles)

    def watch_pages(self, on_pages: OnPages) -> None:
        self._steps.watch_pages(on_pages)

    def start_grammars(self) -> None:
        """In the background."""
        if self._grammars is not None:
            self._grammars.start()

    @torch.inference_mode()
    def launch(self, plan: Plan) -> None:
        assert len(self._plans) < self._steps.depth + self._config.overlaps, f"{len(self._plans)} plans are in flight"
        if self._stale:
            plan, self._stale = plan._replace(released=(*plan.released, *self._stale)), ()
        if self._grammars is not None:
            self._grammars.release(plan.released)
            for request in plan.admitted:
                self._grammars.admit(request)
        self._plans.append(plan)
        self._steps.begin(plan, lambda: self._masks(plan))

    @torch.inference_mode()
    def collect(self) -> Ran:
        """What has been drawn begins the masks of the next draw."""
        drawn = self._steps.end()
        rows = drawn.rows if self._grammars is None else self._grammars.advance(drawn.rows)
        return Ran(StepResult(self._plans.popleft().step, tuple(rows)), times=drawn.times, sample_s=drawn.sample_s)

    def shut(self) -> None:
        """End what belongs to this runner; for tests, as the engine's process ends it all."""
        self._steps.close()

    def _masks(self, plan: Plan) -> TokenMasks | None:
        if self._grammars is None:
            return None
        return self._grammars.masks([handle for row in plan.rows for handle in row.samples])

    def _run_and_forget(self, plan: Plan) -> float:
        """Seconds that the step took; its results come to the host, so it has ended."""
        started_s = time.perf_counter()
        self.run(plan)
        took_s = time.perf_counter() - started_s
        self._stale = tuple(request.handle for request in plan.admitted)
        return took_s
