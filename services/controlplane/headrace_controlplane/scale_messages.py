"""How scaled pools stand, as the contract says it. Decides nothing."""

from collections.abc import Mapping

from headrace.v1 import fleet_pb2
from headrace_controlplane.fleet.pools import Pool
from headrace_controlplane.scale_book import Page
from headrace_controlplane.scaler import Look, Scaler


def pool_scales(pools: Mapping[str, Pool], scaler: Scaler) -> list[fleet_pb2.PoolScale]:
    """One per pool whose number of replicas follows its load."""
    return [
        _message(name, pool, scaler.book.pages[name], scaler.looks.get(name))
        for name, pool in pools.items()
        if pool.is_scaled and name in scaler.book.pages
    ]


def _message(name: str, pool: Pool, page: Page, look: Look | None) -> fleet_pb2.PoolScale:
    shown = fleet_pb2.PoolScale(
        pool=name,
        num_desired=page.state.desired,
        num_kept=page.kept,
        dry_run=pool.scaling.dry_run,
        decisions=[
            fleet_pb2.ScaleDecision(at_ms=e.at_ms, num_desired=e.desired, why=e.why, detail=e.detail, alarm=e.alarm)
            for e in page.decisions
        ],
    )
    if look is None:
        return shown
    picture, decision = look.picture, look.decision
    shown.num_ready, shown.num_starting = picture.count("ready"), picture.count("starting")
    shown.num_draining, shown.start_up_s = picture.count("draining"), picture.start_up_s
    shown.num_reserve_left = decision.num_reserve_left
    if picture.demand is not None and not decision.alarm:
        shown.load = picture.demand.load
    if picture.capacity is not None:
        shown.capacity = picture.capacity
    if picture.forecast is not None:
        shown.forecast = picture.forecast
    now = fleet_pb2.ScaleDecision(num_desired=decision.desired, why=decision.why, detail=decision.detail)
    now.alarm = decision.alarm
    shown.now.CopyFrom(now)
    return shown
