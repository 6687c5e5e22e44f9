"""The router predicts what the worker's own step model would."""

import pytest

from headrace_router.prediction import prefill_s
from headrace_worker.perf.step_model import FEATURES, StepModel

WEIGHTS = (2e-3, 5e-6, 1e-4, 1e-8, 3e-10, 7e-6)
KNEE = 200


@pytest.mark.parametrize("num_tokens", [1, 100, 512, 513, 3000])
@pytest.mark.parametrize("num_cached", [0, 640])
def test_it_agrees_with_the_worker(num_tokens: int, num_cached: int) -> None:
    names = (*FEATURES, f"tokens_beyond_{KNEE}")
    worker = StepModel(WEIGHTS, KNEE).prefill_s(num_tokens, num_cached, chunk_tokens=512)
    assert prefill_s(dict(zip(names, WEIGHTS, strict=True)), num_tokens, num_cached, 512) == pytest.approx(worker)


def test_nothing_known_predicts_nothing() -> None:
    assert prefill_s({}, 1000) == 0.0
    assert prefill_s({"tokens": 1.0}, 0) == 0.0


def test_names_of_a_later_release_are_ignored() -> None:
    assert prefill_s({"tokens": 1.0, "tokens_beyond_what": 9.0, "new": 9.0}, 2) == 2.0
