"""The fit finds the true coefficients through noise, ignores outliers, follows change, and survives useless data."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.cards import card_named
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.model_shape import BUILT_IN_MODELS
from headrace_worker.perf.online_fit import OnlineFit
from headrace_worker.perf.precision import kv_precision, weight_precision
from headrace_worker.perf.prior import prior_model
from headrace_worker.perf.step import Roofline, StepLoad
from headrace_worker.perf.step_model import StepModel

ROOFLINE = Roofline(
    BUILT_IN_MODELS["llama-3.1-8b"], weight_precision("bf16"), kv_precision("bf16"), card_named("h100-80gib"), Layout()
)
PRIOR = prior_model(ROOFLINE)
# A machine unlike the card: every coefficient is off by another factor.
TRUTH = StepModel(
    tuple(value * gain for value, gain in zip(PRIOR.coefficients, (1.6, 1.2, 3.0, 0.7, 1.8, 1.3), strict=True)),
    PRIOR.knee_tokens,
)


def some_load(random: np.random.Generator) -> StepLoad:
    rows = int(random.integers(0, 256))
    chunks = (Prefill(int(random.integers(16, 4096)), int(random.integers(0, 8192))),) if random.random() < 0.4 else ()
    return StepLoad(chunks, rows, rows * int(random.integers(64, 8192)))


def worst_error(model: StepModel, truth: StepModel, num_loads: int = 200) -> float:
    random = np.random.default_rng(99)
    loads = [load for load in (some_load(random) for _ in range(num_loads)) if load.num_tokens]
    return max(abs(model.predict(load) / truth.predict(load) - 1) for load in loads)


def test_before_the_first_step_it_is_the_roofline() -> None:
    assert OnlineFit(PRIOR).model.coefficients == pytest.approx(PRIOR.coefficients, rel=1e-9)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_converges_to_the_true_coefficients_through_noise(seed: int) -> None:
    random = np.random.default_rng(seed)
    fit = OnlineFit(PRIOR)
    assert worst_error(fit.model, TRUTH) > 0.3
    for _ in range(3000):
        load = some_load(random)
        fit.observe(load, TRUTH.predict(load) * random.lognormal(0, 0.05))
    assert worst_error(fit.model, TRUTH) < 0.04


def test_fifty_steps_halve_the_error_of_the_prior() -> None:
    random = np.random.default_rng(4)
    fit = OnlineFit(PRIOR)
    for _ in range(50):
        load = some_load(random)
        fit.observe(load, TRUTH.predict(load) * random.lognormal(0, 0.05))
    assert worst_error(fit.model, TRUTH) < worst_error(PRIOR, TRUTH) / 2


def test_five_percent_of_steps_twenty_times_too_slow_do_not_move_it() -> None:
    random = np.random.default_rng(5)
    fit = OnlineFit(PRIOR)
    for _ in range(3000):
        load = some_load(random)
        stall = 20.0 if random.random() < 0.05 else 1.0
        fit.observe(load, TRUTH.predict(load) * random.lognormal(0, 0.05) * stall)
    assert worst_error(fit.model, TRUTH) < 0.10


def test_it_follows_a_machine_that_becomes_twice_as_slow() -> None:
    random = np.random.default_rng(6)
    fit = OnlineFit(PRIOR)
    for slowdown in (1.0, 2.0):
        for _ in range(4000):
            load = some_load(random)
            fit.observe(load, slowdown * TRUTH.predict(load) * random.lognormal(0, 0.05))
    slower = StepModel(tuple(2 * value for value in TRUTH.coefficients), TRUTH.knee_tokens)
    assert worst_error(fit.model, slower) < 0.08


def test_seeing_one_kind_of_step_only_leaves_the_rest_near_the_prior() -> None:
    """Decodes at one batch and context say nothing on prefill: their features are collinear."""
    fit = OnlineFit(PRIOR)
    load = StepLoad((), 16, 16 * 1000)
    for _ in range(5000):
        fit.observe(load, 2 * PRIOR.predict(load))
    assert fit.model.predict(load) == pytest.approx(2 * PRIOR.predict(load), rel=0.02)
    prefill = StepLoad((Prefill(4096),))
    assert 1.0 <= fit.model.predict(prefill) / PRIOR.predict(prefill) <= 2.0


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**4), st.integers(0, 10**9),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_any_sequence_of_steps_leaves_it_finite_and_not_negative(
    steps: list[tuple[int, int, int, int, float]],
) -> None:
    fit = OnlineFit(PRIOR)
    for prefill, cached, rows, context, measured_s in steps:
        fit.observe(StepLoad((Prefill(prefill, cached),), rows, context), measured_s)
        coefficients = fit.model.coefficients
        assert all(math.isfinite(value) and value >= 0 for value in coefficients)


def test_what_is_no_measurement_is_not_counted() -> None:
    fit = OnlineFit(PRIOR)
    for measured_s in (0.0, -1.0, math.nan, math.inf):
        fit.observe(StepLoad((), 1, 10), measured_s)
    fit.observe(StepLoad(), 0.01)
    assert fit.num_samples == 0


def test_it_works_for_a_machine_a_thousand_times_slower_than_its_prior() -> None:
    """A CPU under a GPU's prior: wrong by orders of magnitude, still learned."""
    random = np.random.default_rng(7)
    fit = OnlineFit(PRIOR)
    slow = StepModel(tuple(1000 * value for value in TRUTH.coefficients), TRUTH.knee_tokens)
    for _ in range(4000):
        load = some_load(random)
        fit.observe(load, slow.predict(load) * random.lognormal(0, 0.05))
    assert worst_error(fit.model, slow) < 0.10


def test_a_twentieth_of_outliers_never_re_anchors() -> None:
    """Re-anchoring forgets: the error must stay small at every step, not only at the end."""
    random = np.random.default_rng(8)
    fit = OnlineFit(TRUTH)
    for _ in range(2000):
        load = some_load(random)
        stall = 20.0 if random.random() < 0.05 else 1.0
        fit.observe(load, TRUTH.predict(load) * random.lognormal(0, 0.05) * stall)
        assert worst_error(fit.model, TRUTH, num_loads=3) < 0.3
