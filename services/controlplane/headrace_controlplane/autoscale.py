"""How many replicas a pool should have when a replica started now would be ready. Pure: the clock is an argument.

    needed = ceil(load quantile / (capacity of a replica x utilization)) + warm reserve,  within min..max

The load is the greater of what is there and what is forecast for now + start-up time; the forecast is made elsewhere.
What is there is eased over a minute: noise is what `utilization` leaves room for, and what is more than that counts at
once. Three things that look alike are not: a load of zero is a load; no report (`load` None) is missing; an old report
is stale. On missing and stale data nothing changes, and an alarm is raised. Going up is at once; going down is to the
most that was needed within the last `down_after_s`, and that time begins anew while a replica is starting.
Knows no forecast, no launcher and no router: units of load and capacity are the caller's, as long as they are the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Why = Literal["steady", "load", "forecast", "held", "queue", "lower", "waiting", "missing", "stale", "unmeasured"]
FRESH_S = 5.0
# A replica that starts for longer than this many times the measured start-up is not waited for.
OVERDUE = 2.0
# Of the exponential mean; it takes as much noise away as a plain mean of twice as long.
EASE_S = 30.0
# After a step down the next one waits for this share of `down_after_s`: a load that ebbs is followed in few steps.
_STRIDE = 0.1
_SLACK = 1e-9


@dataclass(frozen=True)
class ScalePolicy:
    """Bounds and temper of one pool.

    `utilization` is the share of its measured capacity that a replica is loaded to. `queue_age_s`: requests that wait
    longer ask for one replica more than serve or start. `max_starting` bounds replicas that start at once, `max_down`
    those that leave at once (None: no bound).
    """

    min: int = 0
    max: int = 1
    warm_reserve: int = 0
    utilization: float = 0.8
    down_after_s: float = 300.0
    queue_age_s: float = 2.0
    max_starting: int | None = None
    max_down: int | None = None
    unmeasured_capacity: float | None = None
    """What a replica is taken for before one has been measured; None: then nothing is decided from the load."""

    def __post_init__(self) -> None:
        assert 0 <= self.min <= self.max, "bounds of a pool are checked where they are read"
        assert 0 < self.utilization <= 1, "a replica is loaded to a share of what it can do"


@dataclass(frozen=True)
class Demand:
    """What routers reported, and when: load, requests held for want of a replica, the oldest wait."""

    at_s: float
    load: float
    num_held: int = 0
    oldest_wait_s: float = 0.0


@dataclass(frozen=True)
class Seen:
    """One replica of the pool; `age_s` since it was started. One whose metrics fail has state but no say."""

    state: Literal["starting", "ready", "draining"]
    age_s: float = 0.0


@dataclass(frozen=True)
class Picture:
    """All that a decision is made from. `demand` None: no router has spoken within its time."""

    now_s: float
    demand: Demand | None
    replicas: Sequence[Seen]
    start_up_s: float
    capacity: float | None = None
    forecast: float | None = None
    """The load's upper quantile at now + start-up time."""

    def count(self, state: str) -> int:
        return sum(seen.state == state for seen in self.replicas)

    @property
    def num_awaited(self) -> int:
        """Replicas that start and are not overdue."""
        limit_s = OVERDUE * self.start_up_s
        return sum(seen.state == "starting" and seen.age_s < limit_s for seen in self.replicas)


@dataclass(frozen=True)
class ScaleState:
    """What one decision hands to the next."""

    desired: int
    eased: tuple[float, float] | None = None
    """When, and the load without its noise."""
    watched_s: float | None = None
    """Since when needs are noted without a break."""
    needs: tuple[tuple[float, int], ...] = ()
    """When so many were needed last, within `down_after_s`: times rise and needs fall, the first is the most."""
    lowered_s: float = -math.inf


@dataclass(frozen=True)
class Decision:
    """`desired` replicas; the numbers that it rests on, and why in words. `alarm`: a person should look."""

    desired: int
    why: Why
    detail: str
    state: ScaleState
    needed: int | None = None
    num_reserve_left: int = 0
    alarm: bool = False


def decide(policy: ScalePolicy, picture: Picture, state: ScaleState) -> Decision:
    """The replicas that the pool should have; the same arguments give the same decision (a dry run is a call)."""
    before = _clamp(policy, state.desired)
    blind = _blindness(policy, picture)
    if blind is not None:
        why, detail = blind
        # Time in which nothing was known is no time in which little was needed.
        return Decision(before, why, detail, ScaleState(before), alarm=True)
    assert picture.demand is not None, "missing demand is blindness"
    load = _eased(policy, picture, picture.demand.load, replace(state, desired=before))
    needed, why, detail = _needed(policy, picture, replace(picture.demand, load=load))
    reserve_left = picture.count("ready") - _for_load(policy, picture, picture.demand.load)
    state = _watched(policy, picture, replace(state, desired=before, eased=(picture.now_s, load)), needed)
    if needed > before:
        state = replace(state, desired=_rate_limited(policy, picture, before, needed))
    elif needed == before:
        why = "steady"
    else:
        state, why, words = _lower(policy, picture.now_s, state, needed)
        detail = f"{detail}; {words}"
    return Decision(state.desired, why, detail, state, needed, reserve_left)


def _eased(policy: ScalePolicy, picture: Picture, load: float, state: ScaleState) -> float:
    """The load without its noise, for which `utilization` leaves room.

    More than the replicas below the reserve can carry counts at once, and so does what is less by half that room.
    """
    capacity = _capacity(policy, picture)
    if state.eased is None or capacity is None:
        return load
    at_s, eased = state.eased
    carried = (state.desired - policy.warm_reserve) * capacity
    if load > carried or load < eased * (1 + policy.utilization) / 2:
        return load
    kept = math.exp((at_s - picture.now_s) / EASE_S)
    return kept * eased + (1 - kept) * load


def _watched(policy: ScalePolicy, picture: Picture, state: ScaleState, needed: int) -> ScaleState:
    """The needs of the last `down_after_s`, this one included."""
    now_s = picture.now_s
    if state.watched_s is None or picture.num_awaited:
        # Who starts was asked for: it gets to serve before anybody counts idle time.
        return replace(state, watched_s=now_s, needs=((now_s, needed),))
    since_s = now_s - policy.down_after_s
    kept = ((at_s, count) for at_s, count in state.needs if count > needed and at_s >= since_s)
    return replace(state, needs=(*kept, (now_s, needed)))


def _blindness(policy: ScalePolicy, picture: Picture) -> tuple[Why, str] | None:
    demand = picture.demand
    if demand is None:
        return "missing", "no router reports: the last decision holds"
    if picture.now_s - demand.at_s > FRESH_S:
        return "stale", f"the last report is {picture.now_s - demand.at_s:.1f} s old: the last decision holds"
    if _capacity(policy, picture) is None and demand.load > 0 and policy.max > 1 and demand.num_held == 0:
        return "unmeasured", "the capacity of a replica is not measured yet: the last decision holds"
    return None


def _capacity(policy: ScalePolicy, picture: Picture) -> float | None:
    return picture.capacity if picture.capacity else policy.unmeasured_capacity


def _for_load(policy: ScalePolicy, picture: Picture, load: float) -> int:
    """Replicas that carry the load; one at least for any load, none for none."""
    if load <= 0:
        return 0
    capacity = _capacity(policy, picture)
    if capacity is None:
        return 1
    return max(1, math.ceil(load / (capacity * policy.utilization) - _SLACK))


def _needed(policy: ScalePolicy, picture: Picture, demand: Demand) -> tuple[int, Why, str]:
    now, later = (_for_load(policy, picture, load) for load in (demand.load, picture.forecast or 0.0))
    base, why = (later, "forecast") if later > now else (now, "load")
    words = f"load {demand.load:.6g} needs {now}"
    if picture.forecast is not None:
        words += f", {picture.forecast:.6g} forecast for {picture.start_up_s:.6g} s from now needs {later}"
    if base == 0 and demand.num_held:
        base, why, words = 1, "held", f"{words}, {demand.num_held} requests are held"
    needed = base + policy.warm_reserve
    serving = picture.count("ready")
    if demand.oldest_wait_s > policy.queue_age_s and not picture.num_awaited and needed <= serving:
        needed, why = serving + 1, "queue"
        words += f", the oldest has waited {demand.oldest_wait_s:.3g} s with {serving} ready and none starting"
    if policy.warm_reserve:
        words += f", reserve {policy.warm_reserve}"
    return _clamp(policy, needed), why, f"{words}, within {policy.min}..{policy.max}"  # type: ignore[return-value]


def _rate_limited(policy: ScalePolicy, picture: Picture, before: int, needed: int) -> int:
    if policy.max_starting is None:
        return needed
    return max(before, min(needed, picture.count("ready") + policy.max_starting))


def _lower(policy: ScalePolicy, now_s: float, state: ScaleState, needed: int) -> tuple[ScaleState, Why, str]:
    """Less is needed: down to the most that was needed of late, once that has been watched for long enough."""
    assert state.watched_s is not None, "what is needed has just been noted"
    (at_s, most), before = state.needs[0], state.desired
    since_s = max(state.watched_s, at_s) if most >= before else state.watched_s
    left_s = max(since_s + policy.down_after_s, state.lowered_s + _STRIDE * policy.down_after_s) - now_s
    if left_s > 0 or most >= before:
        return state, "waiting", f"fewer than {before} only after {max(0.0, left_s):.6g} s more"
    target = most if policy.max_down is None else max(most, before - policy.max_down)
    after = replace(state, desired=target, lowered_s=now_s)
    if target > most:
        # What is left to go waits for its own time.
        after = replace(after, watched_s=now_s, needs=((now_s, needed),))
    return after, "lower", f"lower for {policy.down_after_s:.6g} s"


def _clamp(policy: ScalePolicy, count: int) -> int:
    return min(policy.max, max(policy.min, count))
