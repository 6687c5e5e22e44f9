"""A Submit becomes a Request, or names the field that is wrong; nothing that a caller can write raises."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import response_pb2, worker_pb2
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.request import Grammar, Request, SamplingParams
from headrace_worker.scheduling.validity import check_request
from headrace_worker.submission import Fault, read_submit


def submit(**fields: Any) -> worker_pb2.Submit:
    defaults: dict[str, Any] = {
        "handle": 9,
        "response_id": "r",
        "attempt": 2,
        "prompt_ids": array("I", [1, 2, 3]).tobytes(),
        "max_output_tokens": 7,
        "n": 1,
    }
    return worker_pb2.Submit(**(defaults | fields))


def read(**fields: Any) -> Request:
    request = read_submit(submit(**fields), 40, b"context")
    assert isinstance(request, Request), request
    return request


def test_absent_fields_mean_their_neutral_values() -> None:
    request = read()
    assert request.sampling == SamplingParams()
    assert (request.handle, request.attempt, list(request.prompt_ids)) == (40, 2, [1, 2, 3])
    assert (request.queue_deadline_s, request.inter_token_s, request.weight) == (None, None, 1.0)
    assert request.kv_context == b"context"


def test_given_values_are_taken_even_when_they_are_zero() -> None:
    wire = response_pb2.Sampling(temperature=0, top_p=0, top_k=-1, seed=0, logprobs=True, top_logprobs=20)
    params = read(sampling=wire).sampling
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.0, 0.0, 0, 0)
    assert (params.logprobs, params.num_logprobs) == (True, 20)


def test_durations_become_seconds() -> None:
    request = read(queue_deadline_ms=1500, inter_token_ms=50, statistical=True)
    assert (request.queue_deadline_s, request.inter_token_s) == (1.5, 0.05)
    assert (request.statistical, request.priority) == (True, 1)


def test_a_grammar_is_taken_by_its_kind_and_text() -> None:
    assert read().grammar is None
    schema = response_pb2.Grammar(kind=response_pb2.Grammar.KIND_JSON_SCHEMA, text="{}")
    assert read(grammar=schema).grammar == Grammar("json_schema", "{}")
    kinds = [kind for kind in response_pb2.Grammar.Kind.values() if kind]
    found = [read(grammar=response_pb2.Grammar(kind=kind)).grammar for kind in kinds]  # type: ignore[arg-type]
    assert [grammar.kind for grammar in found if grammar] == [
        "json_object",
        "json_schema",
        "regex",
        "grammar",
        "choice",
    ]


def test_a_grammar_without_a_kind_is_refused() -> None:
    for grammar in (response_pb2.Grammar(), response_pb2.Grammar(kind=77)):  # type: ignore[arg-type]
        fault = read_submit(submit(grammar=grammar), 40, b"context")
        assert isinstance(fault, Fault) and fault.field == "grammar"


numbers = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1.0, -1.0, 2.0]))
ids = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)
samplings = st.builds(
    response_pb2.Sampling,
    temperature=numbers,
    top_p=numbers,
    min_p=numbers,
    repetition_penalty=numbers,
    presence_penalty=numbers,
    frequency_penalty=numbers,
    top_k=st.integers(-(2**63), 2**63 - 1),
    min_tokens=st.integers(-(2**63), 2**63 - 1),
    seed=st.integers(-(2**63), 2**63 - 1),
    top_logprobs=st.integers(-(2**63), 2**63 - 1),
    logprobs=st.booleans(),
    allowed_ids=ids,
    banned_ids=ids,
    stop_token_ids=ids,
    logit_bias=st.dictionaries(st.integers(-(2**63), 2**63 - 1), numbers, max_size=3),
)


@given(
    sampling=samplings,
    prompt=st.binary(max_size=20),
    max_output=st.integers(0, 2**32 - 1),
    n=st.integers(0, 2**32 - 1),
    weight=numbers,
)
def test_whatever_comes_is_a_fault_or_passes_the_schedulers_check_or_is_refused_there(
    sampling: response_pb2.Sampling, prompt: bytes, max_output: int, n: int, weight: float
) -> None:
    message = submit(sampling=sampling, prompt_ids=prompt, max_output_tokens=max_output, n=n, weight=weight)
    outcome = read_submit(message, 1, b"")
    if isinstance(outcome, Fault):
        assert outcome.field and outcome.detail
        return
    refused = check_request(outcome, Limits(num_pages=10, vocab_size=260, max_running=8, max_step_tokens=64))
    assert refused is None or refused.reason in (
        "invalid_argument",
        "context_length_exceeded",
        "prompt_exceeds_capacity",
    )
