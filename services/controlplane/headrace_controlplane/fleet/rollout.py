"""Section ``rollout``: how a changed pool replaces its replicas. Starts and stops nothing itself."""

from dataclasses import dataclass

from headrace_controlplane.fleet.schema import setting


@dataclass(frozen=True)
class Rollout:
    """New replicas are started first, and old ones leave when enough of the new are ready."""

    surge: int = setting(1, "replicas of a pool that may run beyond its target during a change", minimum=0, maximum=100)
    drain_s: float = setting(30.0, "time that running sequences get when a replica leaves", minimum=0, maximum=3600)
