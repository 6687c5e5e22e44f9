"""What load to expect some time ahead: a level from statsmodels, and how far such levels were off before.

The level is that of a local level model (Harvey, "Forecasting, Structural Time Series Models and the Kalman Filter",
1989), whose variances are estimated anew every few minutes and whose state is filtered with every bucket. The spread of
that model would be a normal one, and loads are not like that: they hold, and then they jump. So the quantile is that of
the forecast's own errors over the last hours (split conformal prediction: Vovk et al., "Algorithmic Learning in a
Random World", 2005), for the minute that begins when a new replica would be ready: noise within it is what the
utilization of a replica leaves room for. Knows no pool and no replica; statsmodels is the extra `forecast`, since it
weighs more than all the rest of the service: without it, there is no forecast and the autoscaler follows the load.
"""

import importlib.util
import math
import warnings
from collections import deque
from typing import Any

BUCKET_S = 10.0
# Six hours: long enough for jumps that come once an hour, short enough that the night does not speak for the day.
_MOST_BUCKETS = 2160
_FEWEST_BUCKETS = 12
_FEWEST_ERRORS = 30
_REFIT_EVERY = 30
# An hour says how much of a change is noise.
_FITTED = 360
# Buckets of what is forecast.
_MINUTE = 6


class ForecastUnavailable(RuntimeError):
    """statsmodels is not installed here; the message says how to install it."""


class LoadForecaster:
    """One load, noted at least once per bucket; times are seconds on the caller's clock.

    `quantile(horizon_s)` is None until errors at that horizon are known: six minutes after the horizon has passed once.
    It is never below the level.
    """

    def __init__(self, upper: float = 0.9) -> None:
        assert 0.5 <= upper < 1, "an upper quantile"
        if importlib.util.find_spec("statsmodels") is None:
            raise ForecastUnavailable("forecasts need statsmodels: pip install 'headrace-controlplane[forecast]'")
        self._upper = upper
        self._buckets: deque[float] = deque(maxlen=_MOST_BUCKETS)
        self._bucket = -1
        self._sum, self._count = 0.0, 0
        self._parameters: Any = None
        self._num_since_fit = 0
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
        """What the load of the minute after now + horizon exceeds with probability 1 - upper."""
        if len(self._buckets) < _FEWEST_BUCKETS:
            return None
        steps = max(1, round(horizon_s / BUCKET_S))
        if steps not in self._answers:
            self._answers[steps] = self._forecast(steps)
        return self._answers[steps]

    def _forecast(self, steps: int) -> float | None:
        import numpy as np

        loads = np.array(self._buckets)
        if len(loads) < steps + _MINUTE + _FEWEST_ERRORS:
            return None
        usual = float(np.nanmean(loads)) or 1.0
        levels = self._levels(loads, usual)
        # Relative to the level, and below the usual load to that: from next to nothing everything is a multiple.
        units = np.maximum(levels, usual)
        later = _minutes(loads)[steps:]
        errors = (later - levels[: len(later)]) / units[: len(later)]
        known = errors[np.isfinite(errors)]
        if len(known) < _FEWEST_ERRORS:
            return None
        return float(levels[-1] + max(0.0, float(np.quantile(known, self._upper))) * units[-1])

    def _close(self, bucket: int) -> None:
        self._buckets.append(self._sum / self._count)
        for _ in range(min(_MOST_BUCKETS, bucket - self._bucket - 1)):
            self._buckets.append(math.nan)
        self._sum, self._count = 0.0, 0
        self._num_since_fit += 1
        self._answers.clear()

    def _levels(self, loads: Any, usual: float) -> Any:
        """The level after each bucket, from that bucket and those before it."""
        import numpy as np
        from statsmodels.tsa.statespace.structural import UnobservedComponents

        # In units of the usual load, so that the optimiser starts near its goal.
        scaled = loads / usual
        with warnings.catch_warnings():
            # An estimate that did not quite converge is still an estimate.
            warnings.simplefilter("ignore")
            if self._parameters is None or self._num_since_fit >= _REFIT_EVERY:
                fitted = UnobservedComponents(scaled[-_FITTED:], level="llevel").fit(disp=0)
                self._parameters, self._num_since_fit = fitted.params, 0
            filtered = UnobservedComponents(scaled, level="llevel").filter(self._parameters)
        return np.maximum(0.0, usual * filtered.filtered_state[0])


def _minutes(loads: Any) -> Any:
    """The mean of each bucket and the next ones, a minute in all; nan where none is known."""
    import numpy as np

    known = np.isfinite(loads)
    sums = np.cumsum(np.concatenate(([0.0], np.where(known, loads, 0.0))))
    counts = np.cumsum(np.concatenate(([0], known)))
    num = counts[_MINUTE:] - counts[:-_MINUTE]
    return np.where(num > 0, (sums[_MINUTE:] - sums[:-_MINUTE]) / np.maximum(num, 1), math.nan)
