"""What could never run is refused by the name of its field, and touches nobody else."""

from __future__ import annotations

import math
from array import array

import pytest

from headrace_worker.scheduling.entrance import HandleInUse
from headrace_worker.scheduling.request import Request, SamplingParams
from tests.unit.worker.scheduling.fakes import Driver, expected_tokens, make_limits


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("stop_token_ids", frozenset({260})),
        ("stop_token_ids", frozenset({-1})),
        ("banned_ids", frozenset({260})),
        ("allowed_ids", frozenset({-1})),
        ("logit_bias", {260: 1.0}),
        ("logit_bias", {5: math.nan}),
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("top_p", 1.1),
        ("min_p", math.nan),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.inf),
        ("frequency_penalty", -math.inf),
        ("num_logprobs", 21),
        ("num_logprobs", -1),
        ("min_tokens", -1),
    ],
)
def test_bad_sampling_is_refused_by_name(field: str, bad: object) -> None:
    driver = Driver(make_limits())
    neighbour = driver.submit(16, 4)
    outcome = driver.submit(16, 4, sampling=SamplingParams(**{field: bad}))  # type: ignore[arg-type]
    assert outcome.refused is not None
    assert (outcome.refused.reason, outcome.refused.field) == ("invalid_argument", field)
    driver.run()
    assert neighbour.tokens[0] == expected_tokens(neighbour, 0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt_ids": ()}, "prompt_ids"),
        ({"prompt_ids": (260,)}, "prompt_ids"),
        ({"prompt_ids": (1, -1)}, "prompt_ids"),
        ({"prompt_ids": array("I", (1, 260, 2))}, "prompt_ids"),
        ({"max_output": 0}, "max_output"),
        ({"max_output": -1}, "max_output"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"weight": 0.0}, "weight"),
        ({"weight": math.nan}, "weight"),
    ],
)
def test_bad_bounds_are_refused_by_name(changes: dict[str, object], field: str) -> None:
    driver = Driver(make_limits())
    fields: dict[str, object] = {"prompt_ids": (1, 2), "max_output": 4} | changes
    driver.scheduler.submit(Request(0, "r", 1, **fields), 0.0)  # type: ignore[arg-type]
    (refused,) = driver.scheduler.take_events()
    assert getattr(refused, "field", None) == field
    assert driver.scheduler.is_idle


@pytest.mark.parametrize(("num_prompt", "max_output", "fits"), [(60, 4, True), (60, 5, False), (63, 1, True)])
def test_the_context_limit_is_inclusive_and_says_what_is_left(num_prompt: int, max_output: int, fits: bool) -> None:
    """B28 at the engine: 64 tokens of context."""
    driver = Driver(make_limits(max_sequence_tokens=64))
    outcome = driver.submit(num_prompt, max_output)
    driver.run()
    if fits:
        assert outcome.finished[0].reason == "length"
    else:
        assert outcome.refused is not None
        assert (outcome.refused.reason, outcome.refused.numbers) == ("context_length_exceeded", (60, 5, 64))


def test_a_live_handle_cannot_be_taken_twice() -> None:
    driver = Driver(make_limits())
    outcome = driver.submit(16, 4, n=3)
    with pytest.raises(HandleInUse):
        driver.scheduler.submit(Request(2, "other", 1, (1,), 1), 0.0)
    driver.run()
    assert len(outcome.finished) == 3
    driver.scheduler.submit(Request(2, "other", 1, (1,), 1), 0.0)
