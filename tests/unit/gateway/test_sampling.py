"""Ranges of sampling options: NaN is outside every one of them, and ids stay inside the vocabulary."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import response_pb2
from headrace_gateway.sampling import check_sampling
from headrace_kit.errors import HeadraceError

NAMES = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


def field_of(**options: Any) -> str | None:
    sampling = response_pb2.Sampling()
    for name, value in options.items():
        if isinstance(value, dict):
            getattr(sampling, name).update(value)
        elif isinstance(value, list):
            getattr(sampling, name).extend(value)
        else:
            setattr(sampling, name, value)
    try:
        check_sampling(sampling, 260, 16)
    except HeadraceError as error:
        return error.field
    return None


@pytest.mark.parametrize("name", NAMES)
@given(value=st.sampled_from([math.nan, math.inf, -math.inf, -3.0]))
def test_what_is_no_number_in_range_is_refused(name: str, value: float) -> None:
    assert field_of(**{name: value}) == name


@given(st.floats(0, 1e6), st.floats(0, 1), st.integers(-1, 2**31 - 1))
def test_what_is_in_range_is_taken(temperature: float, top_p: float, top_k: int) -> None:
    assert field_of(temperature=temperature, top_p=top_p, top_k=top_k) is None


@pytest.mark.parametrize(
    "options",
    [
        {"stop_token_ids": [260]},
        {"stop_token_ids": [-1]},
        {"allowed_ids": [2**40]},
        {"banned_ids": [260]},
        {"logit_bias": {260: 1.0}},
        {"logit_bias": {5: 100.5}},
        {"logit_bias": {5: math.nan}},
        {"min_tokens": 17},
        {"min_tokens": -1},
        {"top_logprobs": 5},
    ],
)
def test_ids_and_bounds(options: dict[str, Any]) -> None:
    assert field_of(**options) == next(iter(options))


def test_edges_are_inside() -> None:
    assert field_of(stop_token_ids=[0, 259], logit_bias={0: -100.0, 259: 100.0}, min_tokens=16) is None
    assert field_of(logprobs=True, top_logprobs=20) is None


@pytest.mark.parametrize("name", ["allowed_ids", "banned_ids", "stop_token_ids"])
def test_lists_of_ids_are_bounded(name: str) -> None:
    assert field_of(**{name: [5] * 1025}) == name


def test_biases_are_bounded() -> None:
    sampling = response_pb2.Sampling(logit_bias=dict.fromkeys(range(1025), 1.0))
    with pytest.raises(HeadraceError, match="at most 1024"):
        check_sampling(sampling, 128_000, 16)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"top_k": -2}, "top_k must be -1 to 2147483647, is -2"),
        ({"temperature": -1.0}, "temperature must be 0 to 1000000, is -1.0"),
        ({"repetition_penalty": 2e6}, "repetition_penalty must be greater than 0 and at most 1000000, is 2000000.0"),
    ],
)
def test_a_refusal_says_the_range_in_plain_numbers(options: dict[str, Any], says: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        check_sampling(response_pb2.Sampling(**options), 260, 16)
    assert caught.value.message == says
