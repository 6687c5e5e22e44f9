"""The plans that a replica runs before it is ready, and the answer that it must know. Knows no tensors' owners."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace_worker.config import WorkerConfig
from headrace_worker.execution.known_answers import KnownAnswer
from headrace_worker.execution.runner import RunnerError
from headrace_worker.scheduling.plan import Plan, PlanRow
from headrace_worker.scheduling.request import Request, SamplingParams

# Relative to the largest logit; by what a prompt computed in two parts may differ from one computed whole.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
KNOWN_ANSWER_PAGES = 5
_PROMPT_TOKENS = 24
_FIRST_PART = 17


def smallest_plan() -> Plan:
    """One prompt of one token."""
    request = Request(1, "warm-up", 1, (0,), 1)
    return Plan(0, (PlanRow(1, (0,), 0, (1,), (1,), 0, 0),), admitted=(request,))


def largest_plan(config: WorkerConfig, max_context: int) -> Plan:
    """As many decodes as may run, beside the longest chunk of prompt that the step then has room for.

    Decodes use every kind of sampling, and each has pages of its own.
    """
    num_decodes = min(config.max_running - 1, config.max_batch_tokens - config.page_tokens)
    chunk = min(config.max_chunk_tokens, config.max_batch_tokens - num_decodes, max_context)
    params = SamplingParams(temperature=0.7, top_p=0.9, top_k=50, min_p=0.01, repetition_penalty=1.1, seed=1)
    rows: list[PlanRow] = []
    admitted: list[Request] = []
    next_page = 1
    lengths = [chunk] + [1] * num_decodes
    for handle, length in enumerate(lengths, 1):
        num_pages = -(-length // config.page_tokens)
        pages = tuple(range(next_page, next_page + num_pages))
        next_page += num_pages
        rows.append(PlanRow(handle, (0,) * length, 0, pages, (handle,), 0, 0))
        admitted.append(Request(handle, "warm-up", handle, (0,), 1, sampling=params))
    return Plan(1, tuple(rows), admitted=tuple(admitted))


def check_known_answer(logits: Callable[[Plan], Tensor], vocab_size: int, dtype: torch.dtype) -> None:
    """A prompt computed whole, and in two parts over its cached pages beside a neighbour, gives the same logits.

    `logits` computes a plan over KNOWN_ANSWER_PAGES pages of at least 16 tokens. Raises RunnerError.
    """
    ids = tuple((7919 * index + 1) % vocab_size for index in range(_PROMPT_TOKENS))
    whole = _run(logits, PlanRow(1, ids, 0, (1, 2), (1,), 0, 0))
    _run(logits, PlanRow(1, ids[:_FIRST_PART], 0, (3, 4), (1,), 0, 0))
    neighbour = PlanRow(2, ids[:5], 0, (5,), (2,), 0, 0)
    parts = _run(logits, PlanRow(1, ids[_FIRST_PART:], _FIRST_PART, (3, 4), (1,), 0, _FIRST_PART), neighbour)
    scale = float(whole.abs().max())
    if not 0 < scale < float("inf"):
        raise RunnerError(f"known answer: the largest logit is {scale}; the weights cannot be right")
    difference = float((whole[0] - parts[0]).abs().max()) / scale
    if not difference <= _TOLERANCE[dtype]:
        raise RunnerError(f"known answer: a prompt in two parts differs from the whole by {difference:.2g}")


def check_known_tokens(logits: Callable[[Plan], Tensor], answer: KnownAnswer, page_tokens: int) -> None:
    """The model's greedy output is the one that it is known for. Raises RunnerError."""
    ids = list(answer.prompt_ids)
    pages = tuple(range(1, 2 + (len(ids) + len(answer.output_ids)) // page_tokens))
    start = 0
    for index, expected in enumerate(answer.output_ids):
        row = PlanRow(1, tuple(ids[start:]), start, pages, (1,), index, start)
        start = len(ids)
        ids.append(int(_run(logits, row)[0].argmax()))
        if ids[-1] != expected:
            raise RunnerError(f"known answer: token {index} is {ids[-1]} and should be {expected}")


def _run(logits: Callable[[Plan], Tensor], *rows: PlanRow) -> Tensor:
    return logits(Plan(0, rows))
