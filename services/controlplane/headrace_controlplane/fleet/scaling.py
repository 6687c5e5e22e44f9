"""Section ``scaling`` of a pool: the temper of its autoscaler. Its bounds are the pool's min, max and warm_reserve."""

from dataclasses import dataclass

from headrace_controlplane.fleet.schema import setting


@dataclass(frozen=True)
class Scaling:
    """Loads are declared tokens per second: prompt and output limit of the requests that arrive."""

    dry_run: bool = setting(False, "decide and explain, and keep as many replicas as there are")
    utilization: float = setting(
        0.8, "share of what it can carry that a replica is loaded to", minimum=0.05, maximum=1.0
    )
    capacity: float | None = setting(
        None, "declared tokens per second that one replica carries; nothing: as measured", minimum=0.001, maximum=1e12
    )
    forecast: float = setting(
        0.9, "quantile of the load expected for when a replica would be ready; 0: no forecast", minimum=0, maximum=0.999
    )
    down_after_s: float = setting(
        300.0, "how long fewer must have been needed before one leaves", minimum=0, maximum=86_400
    )
    queue_age_s: float = setting(
        2.0, "requests that wait longer ask for one replica more", minimum=0.01, maximum=86_400
    )
    max_starting: int | None = setting(None, "most replicas that start at once", minimum=1, maximum=1000)
    max_down: int | None = setting(None, "most replicas that leave in one decision", minimum=1, maximum=1000)
