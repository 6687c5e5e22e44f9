"""What load to expect some time ahead, with its uncertainty: a local linear trend, fitted by statsmodels.

The model (Harvey, "Forecasting, Structural Time Series Models and the Kalman Filter", 1989) has a level and a slope
that drift; its parameters are estimated anew every few minutes, its state with every bucket. The upper quantile of the
forecast is what the autoscaler plans for. Knows no pool and no replica; statsmodels is the extra `forecast`, since it
weighs more than all the rest of the service: without it, there is no forecast and the autoscaler follows the load.
"""

import importlib.util
import math
import warnings
from collections import deque
from statistics import NormalDist
from typing import Any

BUCKET_S = 10.0
_MOST_BUCKETS = 180
_FEWEST_BUCKETS = 12
_REFIT_EVERY = 30


class ForecastUnavailable(RuntimeError):
    """statsmodels is not installed here; the message says how to install it."""


class LoadForecaster:
    """One load, noted at least once per bucket; times are seconds on the caller's clock.

    `quantile(horizon_s)` is None until enough is known. It is never negative and never below the mean forecast.
    """

    def __init__(self, upper: float = 0.9) -> None:
        assert 0.5 <= upper < 1, "an upper quantile"
        if importlib.util.find_spec("statsmodels") is None:
            raise ForecastUnavailable("forecasts need statsmodels: pip install 'headrace-controlplane[forecast]'")
        self._z = NormalDist().inv_cdf(upper)
        self._buckets: deque[float] = deque(maxlen=_MOST_BUCKETS)
        self._bucket = -1
        self._sum, self._count = 0.0, 0
        self._parameters: Any = None
        self._num_since_fit = 0
        self._fresh: tuple[Any, float] | None = None
        # Nothing changes until a bucket closes: what was asked is asked again every second.
        self._answers: dict[int, float | None] = {}

    def note(self, at_s: float, load: float) -> None:
        """A reading of the load. A bucket without one is missing, not zero."""
        bucket = math.floor(at_s / BUCKET_S)
        if bucket != self._bucket and self._count:
            self._close(bucket)
        self._bucket = bucket
        self._sum += load
        self._count += 1

    def quantile(self, horizon_s: float) -> float | None:
        """The load at now + horizon that is exceeded with probability 1 - upper."""
        if len(self._buckets) < _FEWEST_BUCKETS:
            return None
        steps = max(1, round(horizon_s / BUCKET_S))
        if steps not in self._answers:
            self._answers[steps] = self._forecast(steps)
        return self._answers[steps]

    def _forecast(self, steps: int) -> float | None:
        if self._fresh is None:
            self._fresh = self._filtered()
        filtered, scale = self._fresh
        forecast = filtered.get_forecast(steps)
        mean, deviation = float(forecast.predicted_mean[-1]), float(forecast.se_mean[-1])
        if not math.isfinite(mean + deviation):
            return None
        return scale * max(0.0, mean, mean + self._z * deviation)

    def _close(self, bucket: int) -> None:
        self._buckets.append(self._sum / self._count)
        for _ in range(min(_MOST_BUCKETS, bucket - self._bucket - 1)):
            self._buckets.append(math.nan)
        self._sum, self._count = 0.0, 0
        self._num_since_fit += 1
        self._fresh = None
        self._answers.clear()

    def _filtered(self) -> tuple[Any, float]:
        """The model with its state after the last bucket, and the unit that it counts in."""
        import numpy as np
        from statsmodels.tsa.statespace.structural import UnobservedComponents

        # In units of the typical load, so that the optimiser starts near its goal.
        values = np.array(self._buckets)
        scale = float(np.nanmean(values)) or 1.0
        model = UnobservedComponents(values / scale, level="lltrend")
        with warnings.catch_warnings():
            # An estimate that did not quite converge is still an estimate.
            warnings.simplefilter("ignore")
            if self._parameters is None or self._num_since_fit >= _REFIT_EVERY:
                self._parameters, self._num_since_fit = model.fit(disp=0).params, 0
            return model.filter(self._parameters), scale
