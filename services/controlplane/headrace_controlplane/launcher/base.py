"""The port through which replicas are launched, and what it speaks of. Knows no kind of launcher."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class LaunchSpec:
    """How to start one replica; ``digest`` names the settings, so that a changed pool is noticed."""

    replica_id: str
    pool: str
    model: str
    digest: str
    command: tuple[str, ...]
    drain_s: float
    devices: tuple[int, ...] = ()
    """CUDA devices of its host, in the order of its ranks; empty: it chooses itself."""
    launcher: str = "process"
    num_cpus: int = 1
    num_gpus: int = 0


@dataclass(frozen=True)
class Launched:
    """A replica that was started at some time; ``pid`` is 0 while it is not known."""

    spec: LaunchSpec
    alive: bool
    pid: int = 0
    stopping: bool = False
    last_words: str = ""
    """Why a dead one died, as far as is known; what one that starts waits for."""


class Launcher(Protocol):
    """Starts, observes and stops replicas. Calls may block for milliseconds."""

    def observe(self) -> list[Launched]: ...
    def start(self, spec: LaunchSpec) -> None: ...
    def stop(self, replica_id: str) -> None: ...
    def forget(self, replica_id: str) -> None: ...
