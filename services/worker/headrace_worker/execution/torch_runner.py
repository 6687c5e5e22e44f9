"""The torch runner: plans become batches over paged KV, logits become tokens.

Knows no request's fate: what a token ends, and who runs next, is the scheduler's business.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_worker.attention.base import AttentionBackend, AttentionBatch
from headrace_worker.config import WorkerConfig
from headrace_worker.execution.grammars import Grammars
from headrace_worker.execution.inputs import StepInputs, flatten
from headrace_worker.execution.known_answers import known_answer
from headrace_worker.execution.kv_cache import KvCache, KvLayout
from headrace_worker.execution.memory import kv_budget, measure_peak
from headrace_worker.execution.runner import (
    Opened,
    Opening,
    Progress,
    Ran,
    Rejected,
    Runner,
    RunnerDescription,
    RunnerError,
)
from headrace_worker.execution.sampler import Sampler
from headrace_worker.execution.warm_up import (
    KNOWN_ANSWER_PAGES,
    check_known_answer,
    check_known_tokens,
    largest_plan,
    smallest_plan,
)
from headrace_worker.models.checkpoint import Checkpoint
from headrace_worker.models.llama import LlamaForCausalLM
from headrace_worker.scheduling.plan import NULL_PAGE, Plan, ResultRow, StepResult
from headrace_worker.scheduling.request import Request


@dataclass(frozen=True)
class Loaded:
    """A model with its weights and its way to attend."""

    checkpoint: Checkpoint
    model: LlamaForCausalLM
    attention: AttentionBackend
    dtype: torch.dtype
    device: torch.device

    @property
    def weight_bytes(self) -> int:
        """Distinct tensors only: a tied head is counted once."""
        tensors = [*self.model.parameters(), *self.model.buffers(), *_weights(self.model)]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def _weights(model: torch.nn.Module) -> Iterable[Tensor]:
    """Weights are plain tensors of their layers, not parameters: nothing here is trained."""
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))


class TorchRunner(Runner):
    """`max_context` is the most tokens of one sequence; `grammars` is None where constraints cannot be served."""

    def __init__(self, config: WorkerConfig, loaded: Loaded, max_context: int, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._config, self._loaded, self._max_context = config, loaded, max_context
        model_config = loaded.model.config
        self._layout = KvLayout.of(loaded.model, config.page_tokens, loaded.dtype, loaded.device)
        ends = frozenset(loaded.checkpoint.text.end_token_ids)
        self._sampler = Sampler(model_config.vocab_size, ends, loaded.device)
        self._cache: KvCache | None = None
        self._plan: Plan | None = None
        self._workspace_bytes = 0
        self._small_step_s = self._large_step_s = 0.0
        self._large_step_tokens = 1

    @torch.inference_mode()
    def warm_up(self, progress: Progress) -> None:
        config, device = self._config, self._loaded.device
        largest = largest_plan(config, self._max_context)
        num_pages = max(max(row.page_table) for row in largest.rows)
        self._cache = KvCache(self._layout, max(num_pages, KNOWN_ANSWER_PAGES))
        progress("smallest step", 0.1)
        self._small_step_s = min(self._run_and_forget(smallest_plan()) for _ in range(3))
        progress("largest step", 0.2)
        with measure_peak(device) as peak:
            self._large_step_s = self._run_and_forget(largest)
        self._large_step_tokens = sum(len(row.token_ids) for row in largest.rows)
        self._workspace_bytes = peak.num_bytes
        progress("known answer", 0.7)
        vocab_size = self._loaded.model.config.vocab_size
        check_known_answer(lambda plan: self._logits(flatten(plan, config.page_tokens)), vocab_size, self._loaded.dtype)
        checkpoint = self._loaded.checkpoint
        known = known_answer(checkpoint.name, checkpoint.weights.identity)
        if known is not None and self._loaded.dtype == torch.float32:
            check_known_tokens(lambda plan: self._logits(flatten(plan, config.page_tokens)), known, config.page_tokens)
        progress("memory", 0.9)
        self._cache = None
        self._cache = KvCache(self._layout, self._num_pages())
        progress("done", 1.0)

    def describe(self) -> RunnerDescription:
        cache = self._pages()
        checkpoint, model_config = self._loaded.checkpoint, self._loaded.model.config
        config = self._config
        card = checkpoint.card(config.default_output, self._max_context)
        return RunnerDescription(
            engine="torch",
            model=config.model or checkpoint.name,
            revision=config.revision or checkpoint.revision,
            fingerprint=bytes.fromhex(checkpoint.fingerprint),
            vocab_size=model_config.vocab_size,
            end_token_ids=frozenset(checkpoint.text.end_token_ids),
            max_context=self._max_context,
            page_tokens=config.page_tokens,
            num_pages=cache.num_pages,
            precision=config.precision,
            kv_bytes_per_token=self._layout.bytes_per_token,
            weight_bytes=self._loaded.weight_bytes,
            workspace_bytes=self._workspace_bytes,
            kv_pool_bytes=cache.num_pages * self._layout.bytes_per_page,
            grammar=self._grammars is not None,
            card=card.to_bytes(),
            small_step_s=self._small_step_s,
            large_step_s=self._large_step_s,
            large_step_tokens=self._large_step_tokens,
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

    def start_grammars(self) -> None:
        """In the background."""
        if self._grammars is not None:
            self._grammars.start()

    def launch(self, plan: Plan) -> None:
        assert self._plan is None, "this runner takes one step at a time"
        self._plan = plan

    @torch.inference_mode()
    def collect(self) -> Ran:
        plan, self._plan = self._plan, None
        assert plan is not None, "no step was begun"
        self._sampler.release(plan.released)
        for request in plan.admitted:
            self._sampler.admit(request)
        if self._grammars is not None:
            self._grammars.release(plan.released)
            for request in plan.admitted:
                self._grammars.admit(request)
        self._pages().copy(plan.copies)
        inputs = flatten(plan, self._config.page_tokens)
        logits_RV = self._logits(inputs)
        return Ran(StepResult(plan.step, tuple(self._draw(logits_RV, inputs)) if len(logits_RV) else ()))

    def _draw(self, logits_RV: Tensor, inputs: StepInputs) -> list[ResultRow]:
        """Masks have been computed since the last draw, beside the forward pass; what is drawn begins the next."""
        handles, indices = inputs.sample_handles, inputs.sample_indices
        if self._grammars is None:
            return self._sampler.sample(logits_RV, handles, indices)
        rows = self._sampler.sample(logits_RV, handles, indices, self._grammars.masks(handles))
        return self._grammars.advance(rows)

    def _logits(self, inputs: StepInputs) -> Tensor:
        """float32 logits of the rows that draw, [R, V]."""
        device = self._loaded.device
        model = self._loaded.model
        batch = _attention_batch(inputs, self._config.page_tokens, device)
        step = self._loaded.attention.begin(batch, self._pages().layers, model.config.attention_scale)
        ids_T = torch.tensor(inputs.token_ids, dtype=torch.int64, device=device)
        positions_T = torch.tensor(inputs.positions, dtype=torch.int64, device=device)
        hidden_TE = model(ids_T, positions_T, step)
        rows_R = torch.tensor(inputs.sample_rows, dtype=torch.int64, device=device)
        return model.compute_logits(hidden_TE[rows_R])

    def _run_and_forget(self, plan: Plan) -> float:
        """Seconds that the step took; its results come to the host, so it has ended."""
        started_s = time.perf_counter()
        self.run(plan)
        took_s = time.perf_counter() - started_s
        self._sampler.release([request.handle for request in plan.admitted])
        return took_s

    def _pages(self) -> KvCache:
        assert self._cache is not None, "warm_up allocates the pages"
        return self._cache

    def _num_pages(self) -> int:
        """What was asked for, or what the memory holds; at least one sequence of one page must fit."""
        config = self._config
        if config.num_pages is not None:
            return config.num_pages
        budget = kv_budget(self._loaded.device, config.kv_bytes, self._workspace_bytes)
        num_pages = budget // self._layout.bytes_per_page - 1
        if num_pages < 1:
            need = 2 * self._layout.bytes_per_page
            raise RunnerError(f"kv_bytes: {budget} bytes hold no page; at least {need} are needed")
        return num_pages


def _attention_batch(inputs: StepInputs, page_tokens: int, device: torch.device) -> AttentionBatch:
    num_pages = max(len(table) for table in inputs.page_tables)
    padded = [table + (NULL_PAGE,) * (num_pages - len(table)) for table in inputs.page_tables]
    return AttentionBatch(
        query_lens=tuple(inputs.query_lens),
        kv_lens=tuple(inputs.kv_lens),
        page_size=page_tokens,
        page_table_SP=torch.tensor(padded, dtype=torch.int32, device=device),
        slots_T=torch.tensor(inputs.slots, dtype=torch.int64, device=device),
    )
