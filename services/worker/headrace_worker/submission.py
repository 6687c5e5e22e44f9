"""A Submit of the wire as the engine's Request, or the field that is wrong with it. What a caller sends never raises.

Bounds that depend on the model (vocabulary, context, pool) are the scheduler's to check; here is what the wire's types
leave open: lengths, ranges, and fields that this engine does not honour.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from headrace.v1 import response_pb2, worker_pb2
from headrace_worker.config import MAX_CHOICES
from headrace_worker.scheduling.request import Grammar, HandOff, Request, SamplingParams

# Choice i travels as handle + i in 64 bits.
_MAX_HANDLE = 2**63
_MAX_ID_CHARS = 256
_MAX_DIGEST_BYTES = 64
_MAX_IDS = 100_000
_GRAMMAR_KINDS: dict[int, str] = {
    response_pb2.Grammar.KIND_JSON_OBJECT: "json_object",
    response_pb2.Grammar.KIND_JSON_SCHEMA: "json_schema",
    response_pb2.Grammar.KIND_REGEX: "regex",
    response_pb2.Grammar.KIND_GRAMMAR: "grammar",
    response_pb2.Grammar.KIND_CHOICE: "choice",
}


class Fault(NamedTuple):
    """The field that is wrong, and one sentence about it."""

    field: str
    detail: str


def read_submit(submit: worker_pb2.Submit, handle: int, kv_context: bytes) -> Request | Fault:
    """`handle` is the engine's own name for choice 0; `kv_context` is this replica's."""
    fault = next(_faults(submit), None) or next(_sampling_faults(submit.sampling), None)
    if fault is not None:
        return fault
    return Request(
        handle=handle,
        response_id=submit.response_id,
        attempt=submit.attempt,
        prompt_ids=unpack_ids(submit.prompt_ids),
        max_output=submit.max_output_tokens,
        n=submit.n,
        sampling=_sampling(submit.sampling),
        grammar=_grammar(submit.grammar) if submit.HasField("grammar") else None,
        queue_deadline_s=submit.queue_deadline_ms / 1000 or None,
        inter_token_s=submit.inter_token_ms / 1000 or None,
        priority=1 if submit.statistical else 0,
        statistical=submit.statistical,
        fair_key=submit.fair_key,
        weight=submit.weight or 1.0,
        chain_root=submit.chain_root,
        kv_context=kv_context,
        hand_off=HandOff.RECEIVE if submit.prefill.endpoint else HandOff.NONE,
    )


def unpack_ids(packed: bytes) -> array[int]:
    ids = array("I")
    ids.frombytes(packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def _faults(submit: worker_pb2.Submit) -> Iterator[Fault]:
    if submit.handle > _MAX_HANDLE:
        yield Fault("handle", f"must be at most {_MAX_HANDLE}")
    if not 0 < len(submit.response_id) <= _MAX_ID_CHARS:
        yield Fault("response_id", f"must have 1 to {_MAX_ID_CHARS} characters")
    if submit.attempt < 1:
        yield Fault("attempt", "counts from 1")
    if not submit.prompt_ids:
        yield Fault("prompt_ids", "must not be empty")
    if len(submit.prompt_ids) % 4:
        yield Fault("prompt_ids", f"must be packed 32-bit ids, has {len(submit.prompt_ids)} bytes")
    if submit.max_output_tokens < 1:
        yield Fault("max_output_tokens", "must be at least 1")
    if not 1 <= submit.n <= MAX_CHOICES:
        yield Fault("n", f"must be from 1 to {MAX_CHOICES}, is {submit.n}")
    if not 0 <= submit.weight <= 1e9:
        yield Fault("weight", f"must be from 0 to 1e9, is {submit.weight}")
    if len(submit.chain_root) > _MAX_DIGEST_BYTES:
        yield Fault("chain_root", f"must have at most {_MAX_DIGEST_BYTES} bytes")
    kind = submit.grammar.kind
    if submit.HasField("grammar") and kind not in _GRAMMAR_KINDS:
        yield Fault("grammar", f"there is no kind {kind}")


def _sampling_faults(sampling: response_pb2.Sampling) -> Iterator[Fault]:
    # Written as `not low <= x <= high`, so that NaN fails every one of them. An absent field reads 0, which all allow.
    ranges = {
        "temperature": (0.0, 1e6),
        "top_p": (0.0, 1.0),
        "top_k": (-1, 2**63),
        "min_p": (0.0, 1.0),
        "presence_penalty": (-2.0, 2.0),
        "frequency_penalty": (-2.0, 2.0),
        "min_tokens": (0, 2**32),
        "top_logprobs": (0, 20),
    }
    for name, (low, high) in ranges.items():
        value = getattr(sampling, name)
        if not low <= value <= high:
            yield Fault(name, f"must be from {low:g} to {high:g}, is {value}")
    if sampling.HasField("repetition_penalty") and not 1e-6 <= sampling.repetition_penalty <= 1e6:
        yield Fault("repetition_penalty", f"must be from 1e-6 to 1e6, is {sampling.repetition_penalty}")
    if sampling.top_logprobs and not sampling.logprobs:
        yield Fault("top_logprobs", "needs logprobs")
    for token_id, bias in sampling.logit_bias.items():
        if not -100 <= bias <= 100:
            yield Fault("logit_bias", f"must be from -100 to 100, is {bias} for id {token_id}")
    for name in ("allowed_ids", "banned_ids", "stop_token_ids", "logit_bias"):
        if len(getattr(sampling, name)) > _MAX_IDS:
            yield Fault(name, f"must have at most {_MAX_IDS} ids")


def _grammar(wire: response_pb2.Grammar) -> Grammar:
    return Grammar(_GRAMMAR_KINDS[wire.kind], wire.text)


def _sampling(wire: response_pb2.Sampling) -> SamplingParams:
    def given(name: str, neutral: float) -> float:
        return float(getattr(wire, name)) if wire.HasField(name) else neutral

    return SamplingParams(
        temperature=given("temperature", 1.0),
        top_p=given("top_p", 1.0),
        top_k=max(0, wire.top_k),
        min_p=wire.min_p,
        repetition_penalty=given("repetition_penalty", 1.0),
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        logit_bias=dict(wire.logit_bias),
        allowed_ids=frozenset(wire.allowed_ids) or None,
        banned_ids=frozenset(wire.banned_ids),
        seed=wire.seed if wire.HasField("seed") else None,
        min_tokens=wire.min_tokens,
        stop_token_ids=frozenset(wire.stop_token_ids),
        ignore_eos=wire.ignore_eos,
        logprobs=wire.logprobs,
        num_logprobs=wire.top_logprobs,
    )
