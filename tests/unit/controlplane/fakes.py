"""A launcher whose processes are entries of a table, and fleet files for tests."""

from dataclasses import replace

from headrace_controlplane.launcher.base import Launched, LaunchSpec

SCRIPTED = """
models:
  scripted: {source: scripted}
pools:
  scripted: {model: scripted, engine: scripted}
"""


def scripted(**pool: object) -> str:
    """The scripted fleet with further settings of its pool."""
    extra = "".join(f", {name}: {value}" for name, value in pool.items())
    return SCRIPTED.replace("engine: scripted", f"engine: scripted{extra}")


class FakeLauncher:
    """Implements Launcher; ``die`` and ``leave`` play the processes."""

    def __init__(self) -> None:
        self.replicas: dict[str, Launched] = {}
        self.starts: list[str] = []

    def observe(self) -> list[Launched]:
        return list(self.replicas.values())

    def start(self, spec: LaunchSpec) -> None:
        known = self.replicas.get(spec.replica_id)
        assert known is None or not known.alive, f"two processes of {spec.replica_id}"
        self.starts.append(spec.replica_id)
        self.replicas[spec.replica_id] = Launched(spec, alive=True, pid=1000 + len(self.starts))

    def stop(self, replica_id: str) -> None:
        self.replicas[replica_id] = replace(self.replicas[replica_id], stopping=True)

    def forget(self, replica_id: str) -> None:
        assert not self.replicas[replica_id].alive, f"{replica_id} is alive"
        del self.replicas[replica_id]

    def die(self, replica_id: str) -> None:
        self.replicas[replica_id] = replace(self.replicas[replica_id], alive=False, pid=0, last_words="ended: boom")
