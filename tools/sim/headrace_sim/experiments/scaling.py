"""Following the load, planning for its forecast with a reserve, and knowing it: bursts of 120 to 360 and of
ServeGen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_controlplane.forecast import LoadForecaster
from headrace_sim.assembly import Options
from headrace_sim.capacity import Capacity, search_capacity
from headrace_sim.experiments.bench_fleet import POOL_70B, fleet, run, steady
from headrace_sim.experiments.table import Report, percent
from headrace_sim.scaling import Forecaster
from headrace_workload.arrivals import Phase, rate_at
from headrace_workload.servegen import DAY_S, servegen_workload
from headrace_workload.spec import Kind, Workload

SERVEGEN = Path("benchmarks/data/servegen")
START_UP_S = 120.0
# Small replicas: a trace thinned to a fortieth still needs many of them.
_ROOM = 8
_HOUR_S = 3600.0
_TTFT = {"chat": {"ttft_ms": 2000, "max_queue_ms": 4000, "default": True}}


class Clairvoyant:
    """A forecaster that knows the rate: what it says is the most of what is to come within the horizon."""

    def __init__(self, phases: Sequence[Phase], tokens_per_request: float) -> None:
        self._phases, self._tokens = phases, tokens_per_request
        self._now_s = 0.0

    def note(self, at_s: float, load: float) -> None:
        self._now_s = at_s

    def quantile(self, horizon_s: float) -> float:
        steps = max(1, int(horizon_s // 10))
        times = [self._now_s + (horizon_s + 10) * step / steps for step in range(steps + 1)]
        return self._tokens * max(rate_at(self._phases, at_s) for at_s in times)


@dataclass(frozen=True)
class Policy:
    """How a pool is scaled; `reserve` and `quantile` None: without."""

    name: str
    reserve: int = 0
    quantile: float | None = None
    knows: bool = False
    down_after_s: float = 300.0
    utilization: float = 0.85


@dataclass(frozen=True)
class Found:
    """What one policy came to."""

    policy: Policy
    attainment: float
    gpu_hours: float
    starts: int
    summary: dict[str, Any]


def compare(workload: Workload, policies: Sequence[Policy], most: int, seed: int = 1) -> list[Found]:
    """Every policy on the same arrivals."""
    capacity = search_capacity(_fleet(Policy(""), 1, most, 1.0), "p", _flat(workload), seed)
    return [_try(workload, policy, most, capacity, seed) for policy in policies]


def servegen_day_nine(share: float, hours: tuple[float, float] = (17, 21), folder: Path = SERVEGEN) -> Workload:
    """ServeGen m-large, day 9, thinned to a share of its rate; the rate is held per 10-minute window."""
    span_s = (9 * DAY_S + hours[0] * _HOUR_S, 9 * DAY_S + hours[1] * _HOUR_S)
    return servegen_workload(folder, "m-large", "m", span_s, share=share)


def burst(share: float) -> Workload:
    """120 to 360 requests per second within ten seconds, for ten minutes, and back."""
    low, high = 120 * share, 360 * share
    phases = (Phase(600, low, low), Phase(10, low, high), Phase(600, high, high), Phase(10, high, low))
    return Workload("burst", (*phases, Phase(600, low, low)), steady(1, 1).kinds)


def report() -> Report:
    policies = (
        Policy("clairvoyant", knows=True, down_after_s=60),
        Policy("reactive"),
        Policy("forecast", quantile=0.9),
        Policy("forecast + reserve", reserve=1, quantile=0.9, down_after_s=660),
    )
    rows = []
    for name, workload, most in (
        ("120 to 360 rps, 1/40", burst(0.025), 60),
        ("ServeGen day 9, 1/40", servegen_day_nine(0.025), 60),
    ):
        found = compare(workload, policies, most)
        for each in found:
            ratio = each.gpu_hours / found[0].gpu_hours
            rows.append([name, each.policy.name, percent(each.attainment), f"{each.gpu_hours:.1f}", f"{ratio:.2f}"])
    return Report(
        "Reactive, forecast and reserve",
        "A pool of a 70 B model (fp8, two A100 and room for eight sequences a replica, 120 s to start) under the "
        "production autoscaler; TTFT budget "
        "2 s. GPU hours count a replica from its start, reserve included; the last column is against a scaler "
        "that knows "
        "the rate ahead. The rates are thinned so that a run takes minutes; bursts stay as steep.",
        ("workload", "scaling", "attained", "GPU hours", "of clairvoyant"),
        rows,
        "Nothing in the past announces a step that comes within one window: what carries it until new replicas "
        "are there "
        "is the reserve, and capacity that is kept through a short dip.",
    )


def _try(workload: Workload, policy: Policy, most: int, capacity: Capacity, seed: int) -> Found:
    low = max(1, round(workload.phases[0].rps / (capacity.requests_per_s * policy.utilization) + 0.5) + policy.reserve)
    found = _fleet(policy, low, most, capacity.tokens_per_s)
    forecasters: dict[str, Forecaster] = {}
    if policy.knows:
        tokens = capacity.tokens_per_s / capacity.requests_per_s
        forecasters["p"] = Clairvoyant(workload.phases, tokens)
    elif policy.quantile is not None:
        forecasters["p"] = LoadForecaster(policy.quantile)
    outcome, summary = run(found, workload, Options(seed, shares_prefixes=False), forecasters)
    return Found(policy, summary["attainment"], summary["cost"]["gpu_hours"], outcome.depot.num_starts, summary)


def _fleet(policy: Policy, low: int, most: int, capacity: float) -> Any:
    scaling = {"utilization": policy.utilization, "down_after_s": policy.down_after_s, "capacity": capacity}
    pool = {
        **POOL_70B,
        "card": "a100-80gib",
        "max_running": _ROOM,
        "min": 1,
        "max": most,
        "warm_reserve": policy.reserve,
        "start_up_s": START_UP_S,
    }
    return fleet(pool, {"scaling": scaling, "initial": low}, classes=_TTFT)


def _flat(workload: Workload) -> Workload:
    kinds: tuple[Kind, ...] = workload.kinds
    return Workload(workload.name, (Phase(60, 1, 1),), kinds)
