"""The replicas of all pools as a launcher would have them: started, placed, drained, dead. Actions come from reconcile.

Replicas that were there when the simulation began are ready at once; others after their pool's start-up time.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from headrace_controlplane.placement import Domain, Host, Placed, Shape, place
from headrace_controlplane.reconcile import Forget, Observed, PoolTarget, Start, Stop, reconcile
from headrace_sim.clock import Clock
from headrace_sim.fleet import NodesSection, SimPool
from headrace_sim.replica import Replica

_RESTART_S = 1.0


@dataclass
class Entry:
    """One replica that was started, and the devices that it holds."""

    replica: Replica
    placement: Placed | None
    stopping: bool = False


class Depot:
    """`build` makes a replica of a pool; `on_ready` and `on_gone` hear of its course."""

    def __init__(
        self,
        clock: Clock,
        pools: dict[str, SimPool],
        nodes: NodesSection | None,
        build: Callable[[str, SimPool], Replica],
        on_ready: Callable[[Replica], None],
    ) -> None:
        self._clock, self._pools, self._build, self._on_ready = clock, pools, build, on_ready
        self._hosts: dict[str, Host] | None = None
        if nodes is not None:
            devices = tuple(range(nodes.devices))
            names = [f"node-{index}" for index in range(nodes.count)]
            self._hosts = {name: Host(name, (Domain("0", devices, devices),)) for name in names}
        self.targets = {name: pool.num_initial for name, pool in pools.items()}
        self.entries: dict[str, Entry] = {}
        self.past: list[Replica] = []
        self.num_starts = 0
        self.num_stops = 0
        self.num_killed_loading = 0
        self.num_unplaced = 0

    def of(self, pool: str) -> list[Replica]:
        return [entry.replica for entry in self.entries.values() if entry.replica.pool == pool]

    def shares(self, names: Iterable[str]) -> list[float]:
        """Of its model's load, by pool: as in production, those that do the same part share it by their size."""
        found = []
        for name in names:
            mine = _part(self._pools[name])
            sizes = {
                other: max(1, self.targets[other])
                for other, pool in self._pools.items()
                if _part(pool) == mine and pool.settings.most > 0
            }
            found.append(sizes.get(name, 1) / sum(sizes.values()) if sizes else 1.0)
        return found

    def start_initial(self) -> None:
        """The replicas of the first targets, ready at once."""
        self.reconcile(start_up_s=0.0)

    def reconcile(self, start_up_s: float | None = None) -> None:
        """One look and one round of actions."""
        targets = [PoolTarget(name, count, "1", surge=count) for name, count in self.targets.items()]
        for action in reconcile(targets, self._observed(), self._clock.now):
            match action:
                case Start(replica_id, pool):
                    self._start(replica_id, pool, start_up_s)
                case Stop(replica_id):
                    self._stop(replica_id)
                case Forget(replica_id):
                    self._forget(replica_id)

    def kill(self, replica: Replica) -> None:
        """Its devices are free again once reconcile has seen it dead."""
        self._free(self.entries[replica.id])

    def sweep(self) -> list[Replica]:
        """Replicas that left since the last look."""
        left = [entry for entry in self.entries.values() if entry.replica.is_gone and entry.stopping]
        for entry in left:
            self._forget(entry.replica.id)
        return [entry.replica for entry in left]

    def _observed(self) -> list[Observed]:
        seen = []
        for replica_id, entry in self.entries.items():
            replica = entry.replica
            restart_at = (replica.gone_s or 0.0) + _RESTART_S
            alive, ready = not replica.is_gone, replica.state == "ready"
            seen.append(Observed(replica_id, replica.pool, "1", alive, ready, entry.stopping, restart_at))
        return seen

    def _start(self, replica_id: str, pool_name: str, start_up_s: float | None) -> None:
        pool = self._pools[pool_name]
        placement = self._place(pool)
        if placement is None and self._hosts is not None:
            self.num_unplaced += 1
            return
        if replica_id in self.entries:
            self.past.append(self.entries[replica_id].replica)
        replica = self._build(replica_id, pool)
        self.entries[replica_id] = Entry(replica, placement)
        self.num_starts += 1
        delay_s = pool.start_up_s if start_up_s is None else start_up_s
        if delay_s <= 0:
            self._ready(replica)
        else:
            self._clock.after(delay_s, self._ready, replica)

    def _ready(self, replica: Replica) -> None:
        if replica.state == "loading":
            replica.become_ready()
            self._on_ready(replica)

    def _stop(self, replica_id: str) -> None:
        entry = self.entries[replica_id]
        self.num_killed_loading += entry.replica.state == "loading"
        self.num_stops += 1
        entry.stopping = True
        entry.replica.drain()

    def _forget(self, replica_id: str) -> None:
        entry = self.entries.pop(replica_id)
        self._free(entry)
        self.past.append(entry.replica)

    def _place(self, pool: SimPool) -> Placed | None:
        if self._hosts is None:
            return None
        layout = pool.roofline.layout
        shape = Shape(layout.tensor, layout.pipeline, pool.settings.span_domains)
        found = place(shape, list(self._hosts.values()))
        if not isinstance(found, Placed):
            return None
        self._set_free(found, False)
        return found

    def _free(self, entry: Entry) -> None:
        if entry.placement is not None:
            self._set_free(entry.placement, True)
            entry.placement = None

    def _set_free(self, placed: Placed, is_free: bool) -> None:
        assert self._hosts is not None, "who was placed was placed somewhere"
        host = self._hosts[placed.host]
        (domain,) = host.domains
        used = {device for stage in placed.stages for device in stage}
        free = set(domain.free) | used if is_free else set(domain.free) - used
        self._hosts[host.name] = replace(host, domains=(replace(domain, free=tuple(sorted(free))),))


def _part(pool: SimPool) -> tuple[str, str]:
    """Whose load it carries, and what it does with it."""
    return (pool.settings.model, pool.settings.role)
