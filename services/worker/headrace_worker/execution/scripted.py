"""The scripted runner: a real engine in everything but the forward pass (DESIGN section 13). Imports no torch."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterable

import numpy as np

from headrace_worker.config import WorkerConfig
from headrace_worker.execution.runner import (
    OnPages,
    Opened,
    Progress,
    Ran,
    Rejected,
    Runner,
    RunnerDescription,
    TokenLogprob,
)
from headrace_worker.execution.script import END_TOKEN_IDS, VOCAB_SIZE, Cursor, Die, Fail, Script, compile_script
from headrace_worker.execution.scripted_card import make_scripted_card
from headrace_worker.execution.scripted_kv import ScriptedKv
from headrace_worker.scheduling.plan import Plan, PlanRow, ResultRow, StepResult
from headrace_worker.scheduling.request import Request

MODEL = "scripted"
DEFAULT_CONTEXT = 8192
DEFAULT_NUM_PAGES = 4096
# A guess that the first steps correct.
SMALL_STEP_S = 1e-4
_FINGERPRINT = hashlib.sha256(b"headrace scripted engine 1").digest()


def kill_by_signal(whom: str) -> None:
    """What `!die` does in an engine process: its parent is the worker."""
    if whom == "worker":
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class ScriptedRunner(Runner):
    """`kill` carries out `!die`; `clock` gives seconds and decides when a stalled or slowed sequence moves."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        kill: Callable[[str], None] = kill_by_signal,
    ) -> None:
        self._config = config
        self._clock = clock
        self._kill = kill
        self._scripts: dict[int, Script] = {}
        self._cursors: dict[int, Cursor] = {}
        self._logprobs: dict[int, int] = {}
        self._plan: Plan | None = None
        self._on_pages: OnPages | None = None
        # In a split pool there is something to hand off; elsewhere nothing is written.
        self._kv: ScriptedKv | None = None
        self._prompts: dict[int, np.typing.NDArray[np.uint64]] = {}
        if config.role != "both":
            self._kv = ScriptedKv(config.num_pages or DEFAULT_NUM_PAGES, config.page_tokens)

    def warm_up(self, progress: Progress) -> None:
        cursor = Cursor(compile_script(b"a"))
        assert [cursor.advance(0.0), cursor.advance(0.0)] == [97, 257], "the known answer of the scripted engine"
        progress("scripted engine", 1.0)

    def describe(self) -> RunnerDescription:
        config = self._config
        return RunnerDescription(
            engine="scripted",
            model=config.model or MODEL,
            revision=config.revision or "1",
            fingerprint=_FINGERPRINT,
            vocab_size=VOCAB_SIZE,
            end_token_ids=END_TOKEN_IDS,
            max_context=config.max_context or DEFAULT_CONTEXT,
            page_tokens=config.page_tokens,
            num_pages=config.num_pages or DEFAULT_NUM_PAGES,
            precision="none",
            kv_bytes_per_token=0 if self._kv is None else 16,
            images=() if self._kv is None else (self._kv.ref,),
            small_step_s=SMALL_STEP_S,
            large_step_s=SMALL_STEP_S,
            card=make_scripted_card(config.max_context or DEFAULT_CONTEXT, config.default_output, _FINGERPRINT),
        )

    def open(self, request: Request) -> Opened | Rejected:
        if request.grammar is not None:
            return Rejected("invalid_argument", "grammar", "the scripted engine has no grammars")
        script = compile_script(request.prompt_ids)
        self._scripts[request.handle] = script
        return Opened(script.pieces)

    def watch_pages(self, on_pages: OnPages) -> None:
        self._on_pages = on_pages

    def close(self, handles: Iterable[int]) -> None:
        for handle in handles:
            self._scripts.pop(handle, None)

    def launch(self, plan: Plan) -> None:
        assert self._plan is None, "a script takes one step at a time"
        self._plan = plan

    def collect(self) -> Ran:
        plan, self._plan = self._plan, None
        assert plan is not None, "no step was begun"
        for handle in plan.released:
            self._cursors.pop(handle, None)
            self._logprobs.pop(handle, None)
            self._prompts.pop(handle, None)
        for request in plan.admitted:
            self._admit(request)
        now = self._clock()
        if self._kv is not None:
            self._kv.run(plan)
            if plan.exports and self._on_pages is not None:
                self._on_pages(plan.exports, 0, 1)
        rows: list[ResultRow] = []
        dues: list[float] = []
        for row in plan.rows:
            self._run_row(row, now, rows, dues)
        moved = bool(rows) or any(not row.samples for row in plan.rows)
        return Ran(StepResult(plan.step, tuple(rows)), None if moved or not dues else min(dues))

    def _admit(self, request: Request) -> None:
        script = self._scripts.pop(request.handle)
        for handle in range(request.handle, request.handle + request.n):
            self._cursors[handle] = Cursor(script)
            if self._kv is not None:
                self._prompts[handle] = np.asarray(request.prompt_ids, np.uint64)
            if request.sampling.logprobs:
                self._logprobs[handle] = request.sampling.num_logprobs

    def _run_row(self, row: PlanRow, now: float, rows: list[ResultRow], dues: list[float]) -> None:
        if self._kv is not None and not self._kv.holds(row, self._prompts[row.handle]):
            rows.extend(ResultRow(handle, error="engine_error") for handle in row.samples or (row.handle,))
            return
        for handle in row.samples:
            outcome = self._cursors[handle].advance(now)
            if isinstance(outcome, float):
                dues.append(outcome)
            elif isinstance(outcome, int):
                rows.append(ResultRow(handle, (outcome,), self._certainty(handle, outcome)))
            elif isinstance(outcome, Fail):
                rows.append(ResultRow(handle, error="engine_error"))
            else:
                assert isinstance(outcome, Die), f"unknown outcome {outcome}"
                self._kill(outcome.whom)

    def _certainty(self, handle: int, token_id: int) -> tuple[TokenLogprob, ...] | None:
        """A script is sure of itself: probability one, and no alternative has any."""
        if handle not in self._logprobs:
            return None
        return (TokenLogprob(token_id, 0.0, ((token_id, 0.0),) if self._logprobs[handle] else ()),)
