"""Forecasts of the loads of pools, made beside the event loop, since a fit takes a good part of a second.

Knows no pool's settings and decides nothing. Without statsmodels there are no forecasts, which is said once.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from headrace_controlplane.forecast import BUCKET_S, ForecastUnavailable, LoadForecaster

log = logging.getLogger(__name__)
# After so long without any load there is no forecast: its errors remember loads for six hours, and a pool that
# nobody asks for has to come to its minimum.
QUIET_S = 60.0


@dataclass
class _Course:
    """One pool: readings that its forecaster has not learned yet, and what it said last."""

    forecaster: LoadForecaster
    upper: float
    busy_at_s: float
    horizon_s: float = 0.0
    readings: list[tuple[float, float]] = field(default_factory=list)
    quantile: float | None = None


class Forecasts:
    """One forecaster per pool; their state is lost with the process, and is there again after some minutes."""

    def __init__(self) -> None:
        self._courses: dict[str, _Course] = {}
        self._is_missing = False
        self._due_at = float("-inf")

    def of(self, pool: str, upper: float, horizon_s: float, reading: tuple[float, float]) -> float | None:
        """Takes a reading (time, load); returns the last forecast of the load's upper quantile, some seconds old."""
        course = self._courses.get(pool)
        if course is None or course.upper != upper:
            made = self._made(upper)
            if made is None:
                return None
            course = self._courses[pool] = _Course(made, upper, reading[0])
        at_s, load = reading
        if load > 0:
            course.busy_at_s = at_s
        course.horizon_s = horizon_s
        course.readings.append(reading)
        return course.quantile if at_s - course.busy_at_s < QUIET_S else None

    async def refresh(self, now: float) -> None:
        """Learns and forecasts anew, if it is time for it."""
        if now < self._due_at:
            return
        self._due_at = now + BUCKET_S
        for name, course in list(self._courses.items()):
            readings, course.readings = course.readings, []
            try:
                course.quantile = await asyncio.to_thread(_learn, course.forecaster, readings, course.horizon_s)
            except ValueError as error:  # numpy's LinAlgError is one: this data has no fit, later data may
                course.quantile = None
                log.warning("forecast_failed", extra={"pool": name, "detail": str(error)})

    def keep_only(self, names: set[str]) -> None:
        self._courses = {name: course for name, course in self._courses.items() if name in names}

    def _made(self, upper: float) -> LoadForecaster | None:
        if self._is_missing:
            return None
        try:
            return LoadForecaster(upper)
        except ForecastUnavailable as error:
            self._is_missing = True
            log.warning("no_forecasts", extra={"detail": str(error)})
            return None


def _learn(forecaster: LoadForecaster, readings: list[tuple[float, float]], horizon_s: float) -> float | None:
    for at_s, load in readings:
        forecaster.note(at_s, load)
    return forecaster.quantile(horizon_s)
