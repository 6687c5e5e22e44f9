"""Several launchers behind the port of one: each replica is with the launcher that its pool names."""

from collections.abc import Mapping

from headrace_controlplane.launcher.base import Launched, Launcher, LaunchSpec


class Launchers:
    """Implements Launcher; keys are the names that a fleet file has for them."""

    def __init__(self, launchers: Mapping[str, Launcher]) -> None:
        self._launchers = launchers
        self._owner: dict[str, Launcher] = {}

    def observe(self) -> list[Launched]:
        found = [(launcher, seen) for launcher in self._launchers.values() for seen in launcher.observe()]
        self._owner = {seen.spec.replica_id: launcher for launcher, seen in found}
        return [seen for _, seen in found]

    def start(self, spec: LaunchSpec) -> None:
        owner = self._owner.get(spec.replica_id)
        launcher = self._launchers[spec.launcher]
        if owner is not None and owner is not launcher:
            owner.forget(spec.replica_id)
        self._owner[spec.replica_id] = launcher
        launcher.start(spec)

    def stop(self, replica_id: str) -> None:
        self._owner[replica_id].stop(replica_id)

    def forget(self, replica_id: str) -> None:
        self._owner.pop(replica_id).forget(replica_id)
