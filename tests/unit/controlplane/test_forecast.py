"""The forecast follows a level, is off as often as it says, and knows nothing before it has seen enough."""

import random
from itertools import pairwise

import pytest

from headrace_controlplane.forecast import BUCKET_S, LoadForecaster


def fed(loads: list[float], upper: float = 0.9) -> LoadForecaster:
    forecaster = LoadForecaster(upper)
    for index, load in enumerate(loads):
        forecaster.note(index * BUCKET_S, load)
    return forecaster


def test_nothing_is_known_at_first() -> None:
    assert fed([100.0] * 5).quantile(60) is None


def test_a_level_with_noise_is_forecast_a_little_above_itself() -> None:
    rng = random.Random(1)
    found = fed([rng.gauss(150, 10) for _ in range(120)]).quantile(120)
    assert found is not None
    assert 145 < found < 190


@pytest.mark.parametrize("upper", [0.75, 0.9])
def test_the_quantile_is_exceeded_as_often_as_it_says_by_a_load_that_holds_and_jumps(upper: float) -> None:
    """Held for two minutes each; a normal law of the same spread would promise more."""
    rng = random.Random(7)
    levels = [100 * rng.lognormvariate(0, 0.3) for _ in range(100)]
    loads = [level * rng.gauss(1, 0.03) for level in levels for _ in range(12)]
    forecaster, exceeded = LoadForecaster(upper), []
    for index, load in enumerate(loads[:-20]):
        forecaster.note(index * BUCKET_S, load)
        if index >= 400 and index % 20 == 0:
            found = forecaster.quantile(120)
            assert found is not None
            minute = loads[index + 12 : index + 18]
            exceeded.append(sum(minute) / len(minute) > found)
    assert sum(exceeded) / len(exceeded) == pytest.approx(1 - upper, abs=0.1)


def test_a_trend_is_carried_on() -> None:
    rng = random.Random(2)
    ramp = [100 + 3 * index + rng.gauss(0, 5) for index in range(100)]
    found = fed(ramp).quantile(120)
    assert found is not None
    assert found == pytest.approx(100 + 3 * 112, rel=0.15)


def test_a_higher_quantile_and_a_longer_horizon_ask_for_more() -> None:
    rng = random.Random(3)
    loads = [rng.gauss(150, 10) for _ in range(100)]
    by_quantile = [fed(loads, upper).quantile(120) or 0.0 for upper in (0.5, 0.9, 0.99)]
    assert all(low < high for low, high in pairwise(by_quantile))


@pytest.mark.parametrize("load", [0.0, 5.0])
def test_a_constant_load_does_not_break_it(load: float) -> None:
    found = fed([load] * 60).quantile(60)
    assert found is None or found == pytest.approx(load, abs=1.0)


def test_a_silence_is_missing_and_not_zero() -> None:
    forecaster = LoadForecaster()
    for index in [*range(40), *range(80, 100)]:
        forecaster.note(index * BUCKET_S, 100.0 + index % 3)
    found = forecaster.quantile(60)
    assert found is not None
    assert found == pytest.approx(101, rel=0.2)
