"""How the settings of the forecasting scaler were chosen: on days before the one that it is tried on, as a fluid."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from headrace_controlplane.autoscale import ScalePolicy
from headrace_controlplane.forecast import LoadForecaster
from headrace_sim.experiments import fluid
from headrace_sim.experiments.scaling import SERVEGEN, SHARE, START_UP_S, UTILIZATION
from headrace_sim.experiments.table import Report
from headrace_workload.servegen import DAY_S, WINDOW_S, servegen_phases

# Days and hours of the largest jumps upwards before day 9, four hours each.
_BLOCKS = ((0, 20), (1, 4), (8, 0))
_QUANTILES, _RESERVES, _DOWN_S = (0.5, 0.75, 0.9), (1, 2), (300.0, 660.0)
# Requests per second of one replica, as the simulator finds it for the pool of scaling.py.
_CAPACITY = 0.93
_HOURS = 4


def report(blocks: Sequence[tuple[int, int]] = _BLOCKS, folder: Path = SERVEGEN) -> Report:
    found: dict[tuple[float, int, float], list[tuple[float, float]]] = {}
    for day, hour in blocks:
        rates = _rates(day, hour, folder)
        arrived = fluid.arrivals(rates, int(WINDOW_S), 100 * day + hour)
        least = fluid.clairvoyant(rates, int(WINDOW_S), _CAPACITY * UTILIZATION, int(START_UP_S))
        for quantile in _QUANTILES:
            said = fluid.forecast(LoadForecaster(quantile), arrived, int(START_UP_S))
            for reserve, down_s in product(_RESERVES, _DOWN_S):
                policy = ScalePolicy(1, 1000, reserve, UTILIZATION, down_s)
                course = fluid.run(policy, arrived, _CAPACITY, int(START_UP_S), said)
                pair = (course.attainment, course.replica_s / least)
                found.setdefault((quantile, reserve, down_s), []).append(pair)
    rows = []
    for (quantile, reserve, down_s), courses in sorted(found.items()):
        cells = [f"{attained:.2%} at {ratio:.2f}" for attained, ratio in courses]
        rows.append([f"{quantile:g}", f"{reserve}", f"{down_s:g} s", *cells])
    return Report(
        "Settings of the forecasting scaler, chosen on days 0 to 8",
        f"ServeGen m-large at 1/{1 / SHARE:g} of its rate, four hours from the hour that the column names, with the "
        f"production autoscaler and forecaster on a fluid of replicas that carry {_CAPACITY} requests a second: the "
        "share of requests in time, and GPU hours of those of a scaler that knows the rates. Day 9 has no part in it.",
        ("quantile", "reserve", "down after", *(f"day {day}, {hour}:00" for day, hour in blocks)),
        rows,
        "Ten minutes and one more keep through a dip of one window what comes back after it. A higher quantile or a "
        "larger reserve buys little: what is missed is missed in the two minutes after a jump.",
    )


def _rates(day: int, hour: int, folder: Path) -> list[float]:
    start_s = day * DAY_S + hour * 3600
    rates = folder / "m-large_total_rate_10min.csv.gz"
    return [phase.rps for phase in servegen_phases(rates, start_s, start_s + _HOURS * 3600, SHARE)]
