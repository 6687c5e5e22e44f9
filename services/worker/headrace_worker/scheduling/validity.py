"""Whether a request makes sense at all on this replica, before anything is spent on it. Knows sizes, not load."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator

import numpy as np

from headrace_worker.scheduling.events import Refused
from headrace_worker.scheduling.group import promised_pages
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.request import Request, SamplingParams, TokenIds

_MAX_LOGPROBS = 20


def check_request(request: Request, limits: Limits) -> Refused | None:
    """The refusal of a request that could never run, naming the field, or None."""
    fault = _first_fault(request, limits)
    if fault is not None:
        field, detail = fault
        return _refuse(request, "invalid_argument", f"{field}: {detail}", field=field)
    if request.num_max > limits.max_sequence_tokens:
        numbers = (request.num_prompt, request.max_output, limits.max_sequence_tokens)
        detail = (
            f"the prompt has {numbers[0]} tokens and max_output is {numbers[1]}; together at most {numbers[2]} fit, "
            f"which leaves {max(0, numbers[2] - numbers[0])}"
        )
        return _refuse(request, "context_length_exceeded", detail, field="max_output", numbers=numbers)
    # Tested against the whole pool, as if nothing were cached: what is cached may be gone when it is needed.
    needed = promised_pages(request.num_prompt, request.max_output, request.n, limits.page_tokens)
    if needed > limits.num_pages:
        detail = f"the request needs {needed} pages of {limits.page_tokens} tokens, the pool has {limits.num_pages}"
        return _refuse(request, "prompt_exceeds_capacity", detail, numbers=(needed, limits.num_pages))
    return None


def _refuse(
    request: Request, reason: str, detail: str, *, field: str | None = None, numbers: tuple[int, ...] = ()
) -> Refused:
    return Refused(request.handle, request.response_id, request.attempt, reason, detail, field, numbers)


def _first_fault(request: Request, limits: Limits) -> tuple[str, str] | None:
    if not request.prompt_ids:
        return "prompt_ids", "must not be empty"
    lowest, highest = _bounds(request.prompt_ids)
    if lowest < 0 or highest >= limits.vocab_size:
        return "prompt_ids", f"must be below {limits.vocab_size} and not negative"
    if not request.max_output > 0:
        return "max_output", f"must be positive, is {request.max_output}"
    if not 0 < request.n <= limits.max_running:
        return "n", f"must be from 1 to {limits.max_running}, is {request.n}"
    if not 0 < request.weight < math.inf:
        return "weight", f"must be positive and finite, is {request.weight}"
    return next(_sampling_faults(request.sampling, limits.vocab_size), None)


def _bounds(ids: TokenIds) -> tuple[int, int]:
    """The lowest and the highest id. Of a packed prompt, which may be long, without an object for each."""
    if isinstance(ids, array):
        packed = np.frombuffer(ids, dtype=np.dtype(ids.typecode))
        return 0 if ids.typecode == "I" else int(packed.min()), int(packed.max())
    return min(ids), max(ids)


def _sampling_faults(sampling: SamplingParams, vocab_size: int) -> Iterator[tuple[str, str]]:
    id_fields: dict[str, Iterable[int]] = {
        "stop_token_ids": sampling.stop_token_ids,
        "banned_ids": sampling.banned_ids,
        "allowed_ids": sampling.allowed_ids or (),
        "logit_bias": sampling.logit_bias,
    }
    for field, ids in id_fields.items():
        if not all(0 <= token_id < vocab_size for token_id in ids):
            yield field, f"ids must be below {vocab_size} and not negative"
    # Written as `not low <= x <= high`, so that NaN fails every one of them.
    ranges = {
        "temperature": (sampling.temperature, 0.0, 1e6),
        "top_p": (sampling.top_p, 0.0, 1.0),
        "min_p": (sampling.min_p, 0.0, 1.0),
        "repetition_penalty": (sampling.repetition_penalty, 1e-6, 1e6),
        "presence_penalty": (sampling.presence_penalty, -1e6, 1e6),
        "frequency_penalty": (sampling.frequency_penalty, -1e6, 1e6),
        "num_logprobs": (sampling.num_logprobs, 0, _MAX_LOGPROBS),
        "min_tokens": (sampling.min_tokens, 0, math.inf),
    }
    for field, (value, low, high) in ranges.items():
        if not low <= value <= high:
            yield field, f"must be from {low:g} to {high:g}, is {value}"
    if not all(math.isfinite(bias) for bias in sampling.logit_bias.values()):
        yield "logit_bias", "must be finite"
