"""Brings what runs on this host to what the fleet file says, again and again. Decides nothing: reconcile.py does."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from headrace.v1 import fleet_pb2, response_pb2, worker_pb2
from headrace_controlplane.autoscale import Seen
from headrace_controlplane.launcher import devices, worker_command
from headrace_controlplane.launcher.base import Launched, Launcher, LaunchSpec
from headrace_controlplane.launcher.worker_command import WorkerSite
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.placement import Placed, Refused, Shape, place
from headrace_controlplane.reconcile import Forget, Observed, PoolTarget, Start, Stop, reconcile
from headrace_controlplane.roster import Roster
from headrace_controlplane.scale_book import ScaleBook
from headrace_controlplane.streams import any_of
from headrace_kit import telemetry
from headrace_kit.lifecycle import backoff_s

log = logging.getLogger(__name__)
_restarts = telemetry.counter("replica_restarts_total", "Replicas of this host that were started again after they died")
TICK_S = 0.25
_BACKOFF_CAP_S = 30.0
# A new replica counts as serving when routers have had this time to see it: only then may an old one go.
SETTLE_S = 1.0


@dataclass
class _Course:
    """One replica: ``since`` when it should become ready, however often it dies over it; deaths in a row."""

    since: float
    launched_at: float | None = None
    """Of a start by this process that has not led to readiness yet."""
    num_deaths: int = 0
    restart_at: float = 0.0
    counted: bool = False
    ready_since: float | None = None


class Foreman:
    """``run`` for ever; nothing is stopped within the first lease, for who serves is not known before."""

    def __init__(
        self,
        ledger: Ledger,
        roster: Roster,
        launcher: Launcher,
        site: WorkerSite,
        *,
        book: ScaleBook | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._roster, self._launcher, self._site, self._clock = ledger, roster, launcher, site, clock
        self._book = ScaleBook() if book is None else book
        self._may_stop_at = clock() + roster.lease_s
        self._course: dict[str, _Course] = {}
        self._launched: list[Launched] = []
        self._unplaced: dict[str, LaunchSpec] = {}
        self._refusals: dict[str, str] = {}
        """Why the replicas of a pool were placed nowhere."""

    async def run(self) -> None:
        while True:
            changed = self._ledger.changed
            self.tick()
            await any_of(changed, timeout=TICK_S)

    def tick(self) -> None:
        """Looks once and acts once."""
        self._launched, self._unplaced = self._launcher.observe(), {}
        if self._ledger.current is None:
            return
        now = self._clock()
        observed = [self._observed(launched, now) for launched in self._launched]
        for action in reconcile(self._targets(), observed, now):
            match action:
                case Start(replica_id, pool):
                    self._start(replica_id, pool)
                case Stop(replica_id) if now >= self._may_stop_at:
                    self._launcher.stop(replica_id)
                case Forget(replica_id):
                    self._launcher.forget(replica_id)
                    self._course.pop(replica_id, None)

    def retire(self, replica_id: str) -> bool:
        """Stops one replica, which reconciling replaces; False if it was not started here."""
        mine = any(seen.spec.replica_id == replica_id and seen.alive for seen in self._launched)
        if mine:
            self._launcher.stop(replica_id)
        return mine

    def seen(self, pool: str) -> list[Seen]:
        """The replicas of a pool as the autoscaler counts them: one that died and is wanted starts again."""
        return [
            Seen(self._state(launched), self._clock() - self._course_of(launched).since)
            for launched in self._launched
            if launched.spec.pool == pool and (launched.alive or not launched.stopping)
        ]

    def unregistered(self) -> list[fleet_pb2.Replica]:
        """Replicas of this host that the registry does not know: those that start, that died, or have no place."""
        unplaced = [
            fleet_pb2.Replica(
                ref=response_pb2.ReplicaRef(id=spec.replica_id),
                pool=spec.pool,
                model=spec.model,
                state=worker_pb2.REPLICA_STATE_GONE,
                progress=self._refusals[spec.pool],
            )
            for spec in self._unplaced.values()
        ]
        return unplaced + [
            fleet_pb2.Replica(
                ref=response_pb2.ReplicaRef(id=seen.spec.replica_id),
                pool=seen.spec.pool,
                model=seen.spec.model,
                state=worker_pb2.REPLICA_STATE_LOADING if seen.alive else worker_pb2.REPLICA_STATE_GONE,
                progress=seen.last_words or ("starting" if seen.alive else ""),
                pid=seen.pid,
            )
            for seen in self._launched
            if self._roster.registry.get(seen.spec.replica_id) is None and seen.spec.replica_id not in self._unplaced
        ]

    def _targets(self) -> list[PoolTarget]:
        assert self._ledger.current is not None, "there is a fleet"
        fleet = self._ledger.current.fleet
        return [
            PoolTarget(
                name,
                self._book.size(name, pool, self._num_running(name)),
                worker_command.digest(fleet, name),
                fleet.rollout.surge,
            )
            for name, pool in fleet.pools.items()
            if pool.launcher != "external"
        ]

    def _num_running(self, pool: str) -> int:
        return sum(seen.spec.pool == pool and not seen.stopping for seen in self._launched)

    def _course_of(self, launched: Launched) -> _Course:
        return self._course.setdefault(launched.spec.replica_id, _Course(self._clock()))

    def _state(self, launched: Launched) -> Literal["starting", "ready", "draining"]:
        if launched.stopping:
            return "draining"
        return "starting" if self._course_of(launched).ready_since is None else "ready"

    def _observed(self, launched: Launched, now: float) -> Observed:
        spec = launched.spec
        record = self._roster.registry.get(spec.replica_id)
        ready = record is not None and record.state == "ready"
        course = self._course_of(launched)
        if not launched.alive and not course.counted:
            course.counted = True
            if course.num_deaths == 0:
                course.since = now
            course.restart_at = now + backoff_s(course.num_deaths, base_s=0.25, cap_s=_BACKOFF_CAP_S)
            course.num_deaths += 1
            log.warning("replica_died", extra={"replica": spec.replica_id, "detail": launched.last_words})
            if record is not None:
                self._roster.remove(spec.replica_id)
        elif launched.alive and ready:
            course.num_deaths = 0
        serving = launched.alive and ready
        if serving and course.launched_at is not None:
            self._book.note_start_up(spec.pool, now - course.launched_at)
            course.launched_at = None
        course.ready_since = (course.ready_since or now) if serving else None
        return Observed(
            *(spec.replica_id, spec.pool, spec.digest),
            alive=launched.alive,
            ready=course.ready_since is not None and now >= course.ready_since + SETTLE_S,
            stopping=launched.stopping,
            restart_at=course.restart_at,
        )

    def _start(self, replica_id: str, pool: str) -> None:
        assert self._ledger.current is not None, "there is a fleet"
        spec = self._placed(worker_command.launch_spec(self._ledger.current.fleet, pool, replica_id, self._site))
        if spec is None:
            return
        course = self._course.setdefault(replica_id, _Course(self._clock()))
        if course.num_deaths:
            _restarts.inc()
        course.counted, course.launched_at = False, self._clock()
        self._launcher.start(spec)
        self._launched = [seen for seen in self._launched if seen.spec.replica_id != replica_id]
        self._launched.append(Launched(spec, alive=True))

    def _placed(self, spec: LaunchSpec) -> LaunchSpec | None:
        """With its devices, where those of this host are known and it needs some; None if there is no room for it."""
        assert self._ledger.current is not None, "there is a fleet"
        pool, host = self._ledger.current.fleet.pools[spec.pool], self._site.devices
        if host is None or pool.device != "cuda" or pool.launcher != "process":
            return spec
        used = {device for seen in self._launched if seen.alive for device in seen.spec.devices}
        found = place(Shape(pool.tp, pool.pp, pool.span_domains), [devices.without(host, used)])
        reason = found.reason if isinstance(found, Refused) else found.cost
        if reason and self._refusals.get(spec.pool) != reason:
            log.warning("placement", extra={"pool": spec.pool, "placed": isinstance(found, Placed), "detail": reason})
        self._refusals[spec.pool] = reason
        if isinstance(found, Refused):
            self._unplaced[spec.replica_id] = spec
            return None
        return replace(spec, devices=tuple(device for stage in found.stages for device in stage))
