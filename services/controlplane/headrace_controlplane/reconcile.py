"""What to start and what to let go so that each pool has its replicas. Pure: plain data in, actions out.

Knows no process: a launcher observes and acts. A changed pool starts its new replicas first (``surge``) and lets an
old one go only while enough others serve.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PoolTarget:
    """What a pool should have: ``digest`` names the settings that its replicas must have been started with."""

    pool: str
    num_replicas: int
    digest: str
    surge: int = 1


@dataclass(frozen=True)
class Observed:
    """A replica that was started here: ``alive`` is its process, ``ready`` its last heartbeat."""

    replica_id: str
    pool: str
    digest: str
    alive: bool = True
    ready: bool = False
    stopping: bool = False
    restart_at: float = 0.0
    """Not before this time may a dead one be started again."""


@dataclass(frozen=True)
class Start:
    """Start a replica of ``pool`` under this id, which no living process has."""

    replica_id: str
    pool: str


@dataclass(frozen=True)
class Stop:
    """Ask a living replica to drain and leave."""

    replica_id: str


@dataclass(frozen=True)
class Forget:
    """Drop what is known of a dead replica that is not wanted any more."""

    replica_id: str


Action = Start | Stop | Forget


def reconcile(targets: Iterable[PoolTarget], observed: Sequence[Observed], now: float) -> list[Action]:
    """Actions that bring ``observed`` nearer to ``targets``; none if nothing is to be done."""
    wanted = {target.pool: target for target in targets}
    gone = {seen.pool for seen in observed} - wanted.keys()
    for pool in sorted(gone):
        wanted[pool] = PoolTarget(pool, 0, "")
    taken = {seen.replica_id for seen in observed}
    actions: list[Action] = []
    for target in wanted.values():
        actions += _pool(target, [seen for seen in observed if seen.pool == target.pool], taken, now)
    return actions


def _pool(target: PoolTarget, observed: list[Observed], taken: set[str], now: float) -> list[Action]:
    wanted = [seen for seen in observed if seen.digest == target.digest and not seen.stopping]
    outdated = [seen for seen in observed if seen.digest != target.digest and not seen.stopping]
    kept, surplus = _split(wanted, target.num_replicas)
    leaving = [seen for seen in observed if seen.stopping] + surplus + outdated
    actions: list[Action] = [Forget(seen.replica_id) for seen in leaving if not seen.alive]
    actions += [Stop(seen.replica_id) for seen in surplus if seen.alive]
    actions += [Start(seen.replica_id, seen.pool) for seen in kept if not seen.alive and seen.restart_at <= now]
    old = [seen for seen in outdated if seen.alive]
    missing = target.num_replicas - len(kept)
    room = target.num_replicas + target.surge - len(kept) - len(old)
    for _ in range(min(missing, room)):
        actions.append(Start(_free_id(target.pool, taken), target.pool))
    return actions + [Stop(seen.replica_id) for seen in _may_go(target, kept, old)]


def _split(wanted: list[Observed], num_replicas: int) -> tuple[list[Observed], list[Observed]]:
    """Those to keep and those too many: a replica that serves is kept before one that does not yet."""
    ordered = sorted(wanted, key=lambda seen: (not seen.ready, not seen.alive, _index(seen)))
    return ordered[:num_replicas], ordered[num_replicas:]


def _may_go(target: PoolTarget, kept: list[Observed], old: list[Observed]) -> list[Observed]:
    """Old replicas that are not needed: enough serve without them, or none may run beyond the target (surge 0)."""
    serving = sum(seen.ready for seen in kept) + sum(seen.ready for seen in old)
    useless = [seen for seen in old if not seen.ready]
    serving_old = sorted((seen for seen in old if seen.ready), key=_index)
    spare = max(0, serving - target.num_replicas)
    all_settled = all(seen.ready for seen in kept)
    if target.surge == 0 and spare == 0 and all_settled and len(kept) + len(serving_old) >= target.num_replicas:
        spare = 1
    return useless + serving_old[:spare]


def _free_id(pool: str, taken: set[str]) -> str:
    index = 0
    while f"{pool}-{index}" in taken:
        index += 1
    taken.add(f"{pool}-{index}")
    return f"{pool}-{index}"


def _index(seen: Observed) -> int:
    return int(seen.replica_id.rpartition("-")[2])
