"""The autoscaler at work: demand in, one decision per pool and second out, into the book that the foreman follows.

Decides nothing itself: autoscale.py does. Knows no launcher. A pool has the whole load of its model; pools of one model
that do the same part share it by their size, and one on trial has its share of it.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from headrace.v1 import fleet_pb2
from headrace_controlplane.autoscale import Decision, Demand, Picture, ScalePolicy, Seen, decide
from headrace_controlplane.capacity import Reading
from headrace_controlplane.demand import FRESH_S, DemandBoard
from headrace_controlplane.fleet.file import Fleet
from headrace_controlplane.fleet.pools import Pool
from headrace_controlplane.forecasts import Forecasts
from headrace_controlplane.launcher import worker_command
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.scale_book import Entry, Page, ScaleBook
from headrace_controlplane.subscribers import Subscribers
from headrace_kit import telemetry

log = logging.getLogger(__name__)
_desired = telemetry.gauge("scale_desired_replicas", "Replicas that the last decision wants", ["pool"])
_reserve = telemetry.gauge("scale_reserve_replicas", "Ready replicas beyond those that the load needs", ["pool"])
_blind = telemetry.gauge("scale_blind", "1 while a pool's size is held for want of data", ["pool"])
TICK_S = 1.0
# Whoever comes waits for the step that runs: that is no queue.
WAITS_MS = 500
# Until a start-up was measured.
UNKNOWN_START_UP_S = 30.0


class Crew(Protocol):
    """Who runs the replicas of pools."""

    def seen(self, pool: str) -> list[Seen]: ...


@dataclass(frozen=True)
class Look:
    """What the last decision of a pool was made from."""

    picture: Picture
    decision: Decision


@dataclass
class Scaler:
    """``run`` for ever. Clocks: monotonic and Unix time, in seconds."""

    ledger: Ledger
    board: DemandBoard
    subscribers: Subscribers
    crew: Crew
    book: ScaleBook
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    forecasts: Forecasts = field(default_factory=Forecasts)
    looks: dict[str, Look] = field(default_factory=dict)
    """By pool."""
    subscribed_at: dict[str, float] = field(default_factory=dict)
    """Since when a router has subscribed."""

    def __post_init__(self) -> None:
        self.born_at = self.clock()

    async def run(self) -> None:
        while True:
            self.tick()
            await self.forecasts.refresh(self.clock())
            await asyncio.sleep(TICK_S)

    def tick(self) -> None:
        """Looks once at every pool whose number of replicas is ours to choose."""
        if self.ledger.current is None:
            return
        fleet = self.ledger.current.fleet
        scaled = {name: pool for name, pool in fleet.pools.items() if pool.is_scaled}
        self._note_routers()
        if self.board.last_at is None and self.clock() - self.born_at < FRESH_S:
            return  # routers have not had the time to say anything: no reason to act, and none for an alarm
        self._forget_all_but(set(scaled))
        pictures = {}
        for name, pool in scaled.items():
            seen = self.crew.seen(name)
            num_running = sum(each.state != "draining" for each in seen)
            page = self.book.open(name, pool, num_running, worker_command.digest(fleet, name))
            pictures[name] = self._picture(fleet, name, page, seen)
        # All are looked at before one changes: pools that share a load share it by the same sizes.
        for name, picture in pictures.items():
            self._decide(fleet, name, self.book.pages[name], picture)
        self.book.save()

    def _decide(self, fleet: Fleet, name: str, page: Page, picture: Picture) -> None:
        pool = fleet.pools[name]
        brings_card = not self.ledger.card(pool.model, fleet.revision_of(name))
        decision = decide(policy_of(pool, brings_card), picture, page.state)
        if brings_card:
            decision = replace(decision, detail=f"{decision.detail}, for one has to bring the model's card")
        silent = self._silent()
        if decision.alarm and silent:
            decision = replace(decision, detail=f"{decision.detail} (silent: {', '.join(silent)})")
        before = page.decisions[-1] if page.decisions else None
        changed = decision.desired != page.state.desired
        page.state = decision.state
        if not pool.scaling.dry_run:
            page.kept = decision.desired
        self.looks[name] = Look(picture, decision)
        _desired.labels(name).set(decision.desired)
        _reserve.labels(name).set(decision.num_reserve_left)
        _blind.labels(name).set(decision.alarm)
        if changed or before is None or before.alarm != decision.alarm:
            entry = Entry(round(self.wall() * 1000), decision.desired, decision.why, decision.detail, decision.alarm)
            page.decisions.append(entry)
            facts = {"pool": name, "desired": decision.desired, "kept": page.kept, "why": decision.why}
            level = logging.WARNING if decision.alarm else logging.INFO
            log.log(level, "scale", extra={**facts, "detail": decision.detail, "dry_run": pool.scaling.dry_run})

    def _picture(self, fleet: Fleet, name: str, page: Page, seen: list[Seen]) -> Picture:
        pool = fleet.pools[name]
        start_up_s = pool.start_up_s or page.start_up_s or UNKNOWN_START_UP_S
        demand, forecast = self._demand(fleet, name, page), None
        if demand is not None and self.board.fresh() and pool.scaling.forecast:
            forecast = self.forecasts.of(name, pool.scaling.forecast, start_up_s, (self.clock(), demand.load))
        capacity = pool.scaling.capacity or page.meter.capacity
        return Picture(self.clock(), demand, seen, start_up_s, capacity, forecast)

    def _demand(self, fleet: Fleet, name: str, page: Page) -> Demand | None:
        """None: some router that subscribes does not report, or none was heard since this process began."""
        pool, heard_at = fleet.pools[name], self.board.last_at
        if heard_at is None or (self._silent() and self.board.fresh()):
            page.meter.interrupt()
            return None
        if not self.board.fresh():
            page.meter.interrupt()
            return Demand(heard_at, 0.0)
        whole, share = self.board.load(pool.model), self._share(fleet, name)
        full = self.board.pool(name)
        if full is not None:
            page.meter.note(
                Reading(
                    whole.tokens_per_s * share,
                    whole.arrivals_per_s * share,
                    full.num_replicas,
                    occupancy(full, pool),
                    full.num_waiting if full.oldest_wait_ms >= WAITS_MS else 0,
                )
            )
        oldest_s = full.oldest_wait_ms / 1000 if full is not None else 0.0
        if not pool.canary:
            oldest_s = max(oldest_s, whole.oldest_held_s)
        num_held = 0 if pool.canary else whole.num_held
        return Demand(heard_at, whole.tokens_per_s * share, num_held, oldest_s)

    def _silent(self) -> list[str]:
        """Routers that have subscribed for long enough to report, and do not."""
        speaking = {report.router_id for report in self.board.fresh()}
        limit = self.clock() - FRESH_S
        return sorted(name for name, since in self.subscribed_at.items() if since <= limit and name not in speaking)

    def _note_routers(self) -> None:
        now, routers = self.clock(), {s.instance for s in self.subscribers if s.service == "router"}
        self.subscribed_at = {name: self.subscribed_at.get(name, now) for name in routers}

    def _share(self, fleet: Fleet, name: str) -> float:
        pool = fleet.pools[name]
        if pool.canary:
            canary = fleet.models[pool.model].canary
            return canary.share if canary is not None else 0.0
        sizes = {
            other: max(1, self.book.size(other, beside, beside.min))
            for other, beside in fleet.pools.items()
            if (beside.model, beside.role, beside.canary) == (pool.model, pool.role, False) and beside.most > 0
        }
        return sizes[name] / sum(sizes.values())

    def _forget_all_but(self, names: set[str]) -> None:
        self.book.keep_only(names)
        self.forecasts.keep_only(names)
        for name in self.looks.keys() - names:
            del self.looks[name]
            for each in (_desired, _reserve, _blind):
                each.remove(name)


def policy_of(pool: Pool, brings_card: bool = False) -> ScalePolicy:
    """The autoscaler's view of a pool's settings; gateways know no model before a replica brought its card."""
    temper = pool.scaling
    return ScalePolicy(
        max(pool.min, 1) if brings_card else pool.min,
        pool.most,
        pool.warm_reserve,
        temper.utilization,
        temper.down_after_s,
        temper.queue_age_s,
        temper.max_starting,
        temper.max_down,
    )


def occupancy(load: fleet_pb2.PoolLoad, pool: Pool) -> float:
    """Share of the places or of the pages of ready replicas that is promised, the greater of both."""
    places = load.num_replicas * pool.max_running
    by_places = load.num_running / places if places else 0.0
    by_pages = load.num_promised_pages / load.num_total_pages if load.num_total_pages else 0.0
    return max(by_places, by_pages)
