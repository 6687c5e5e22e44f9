"""Bounds: refused, not clamped; the message holds the numbers."""

from __future__ import annotations

import pytest

from headrace_gateway.bounds import Bounds, Limits, declare
from headrace_kit.errors import HeadraceError

CTX64 = Limits(max_context=64, default_output=1024)


def refusal(num_prompt: int, max_output: int | None, n: int | None = None) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        declare(num_prompt, max_output, n, CTX64, field="max_tokens")
    return caught.value


def test_a_prompt_over_the_context_names_prompt_and_limit() -> None:  # B27
    error = refusal(109, None)
    assert error.reason == "context_length_exceeded"
    assert "109" in error.message and "64" in error.message and "-45" not in error.message


@pytest.mark.parametrize(("num_prompt", "max_output", "bound"), [(60, 4, 4), (63, 1, 1), (60, None, 4)])
def test_what_fits_exactly_is_taken(num_prompt: int, max_output: int | None, bound: int) -> None:  # B28
    assert declare(num_prompt, max_output, None, CTX64) == Bounds(num_prompt, bound, 1)


def test_one_over_is_refused_with_all_three_numbers() -> None:  # B28
    error = refusal(60, 5)
    assert error.reason == "context_length_exceeded" and error.field == "max_tokens"
    assert all(number in error.message.replace(";", " ").split() for number in ("60", "5", "64"))
    assert "leaves 4" in error.message


@pytest.mark.parametrize("max_output", [1, None])
def test_a_prompt_that_leaves_no_room_is_refused(max_output: int | None) -> None:  # B28
    assert refusal(64, max_output).reason == "context_length_exceeded"


@pytest.mark.parametrize("max_output", [10**9, 2**31, 2**63])
def test_a_huge_limit_is_refused_before_use(max_output: int) -> None:  # B30
    assert refusal(10, max_output).reason == "context_length_exceeded"


@pytest.mark.parametrize("max_output", [0, -1])
def test_no_output_is_refused(max_output: int) -> None:  # B30, decision 4
    error = refusal(10, max_output)
    assert (error.reason, error.field) == ("invalid_argument", "max_tokens")


@pytest.mark.parametrize("n", [0, -1, 129])
def test_the_number_of_choices_is_bounded(n: int) -> None:  # B46
    assert (refusal(10, 1, n).reason, refusal(10, 1, n).field) == ("invalid_argument", "n")


def test_an_absent_limit_is_capped_by_default_and_pool() -> None:
    limits = Limits(max_context=8192, default_output=1024)
    assert declare(10, None, None, limits).max_output_tokens == 1024
    assert declare(10, None, 2, limits.within(100)) == Bounds(10, 90, 2)
    assert limits.within(None) == limits.within(10**6) == limits
