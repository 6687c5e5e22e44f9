"""Forecasts beside the loop: what is learned, what is kept, and what happens without a fit or without the library."""

import pytest

from headrace_controlplane import forecasts
from headrace_controlplane.forecast import BUCKET_S, ForecastUnavailable
from headrace_controlplane.forecasts import QUIET_S, Forecasts


class Learner:
    """Says the sum of its readings; plays the forecaster."""

    def __init__(self, upper: float) -> None:
        self.readings: list[tuple[float, float]] = []

    def note(self, at_s: float, load: float) -> None:
        if load < 0:
            raise ValueError("no fit")
        self.readings.append((at_s, load))

    def quantile(self, horizon_s: float) -> float:
        return horizon_s + sum(load for _, load in self.readings)


@pytest.fixture(autouse=True)
def learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "LoadForecaster", Learner)


async def test_readings_are_learned_bucket_by_bucket() -> None:
    made = Forecasts()
    assert made.of("p", 0.9, 100.0, (0.0, 1.0)) is None
    await made.refresh(0.0)
    assert made.of("p", 0.9, 100.0, (1.0, 2.0)) == 101
    await made.refresh(1.0)
    assert made.of("p", 0.9, 100.0, (2.0, 3.0)) == 101
    await made.refresh(BUCKET_S)
    assert made.of("p", 0.9, 200.0, (11.0, 0.0)) == 106


async def test_a_load_that_stopped_has_no_forecast_until_it_comes_back() -> None:
    made = Forecasts()
    made.of("p", 0.9, 100.0, (0.0, 1.0))
    await made.refresh(0.0)
    assert made.of("p", 0.9, 100.0, (QUIET_S - 1, 0.0)) == 101
    assert made.of("p", 0.9, 100.0, (QUIET_S, 0.0)) is None
    assert made.of("p", 0.9, 100.0, (QUIET_S + 1, 5.0)) == 101


async def test_data_without_a_fit_is_no_forecast_and_no_crash() -> None:
    made = Forecasts()
    made.of("p", 0.9, 100.0, (0.0, -1.0))
    await made.refresh(0.0)
    assert made.of("p", 0.9, 100.0, (1.0, 2.0)) is None
    await made.refresh(BUCKET_S)
    assert made.of("p", 0.9, 100.0, (2.0, 2.0)) == 102


async def test_another_quantile_and_a_pool_that_left_begin_anew() -> None:
    made = Forecasts()
    made.of("p", 0.9, 100.0, (0.0, 1.0))
    await made.refresh(0.0)
    assert made.of("p", 0.5, 100.0, (1.0, 1.0)) is None
    made.keep_only(set())
    await made.refresh(BUCKET_S)
    assert made.of("p", 0.5, 100.0, (1.0, 1.0)) is None


async def test_without_the_library_there_are_none_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(upper: float) -> None:
        raise ForecastUnavailable("forecasts need statsmodels")

    monkeypatch.setattr(forecasts, "LoadForecaster", missing)
    made = Forecasts()
    for second in range(5):
        assert made.of("p", 0.9, 100.0, (float(second), 1.0)) is None
    assert len(caplog.records) == 1
