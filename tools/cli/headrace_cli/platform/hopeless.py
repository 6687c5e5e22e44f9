"""What waiting does not mend: a service, a background task or a replica that ends again and again, one without a place.

Fed with one look after another while somebody waits for a start; restarts nothing and stops nothing.
"""

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.v1 import fleet_pb2 as fleet
from headrace.v1 import worker_pb2 as worker
from headrace_cli.platform import workers
from headrace_cli.platform.state_dir import SERVICES, StateDir, read_json

MOST_DEATHS = 5
NO_PLACE_S = 30.0
_METRICS_EVERY_S = 2.0
_CRASHES = re.compile(r'^task_crashes_total\{task="([^"]+)"\} ([0-9.e+]+)$', re.MULTILINE)
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Hopeless:
    """`look` at the replicas of the moment; a sentence once there is no use in waiting."""

    state: StateDir
    clock: Callable[[], float] = time.monotonic
    _pids: dict[str, set[int]] = field(default_factory=dict)
    """Of each replica that is not ready: every process that it was."""
    _unplaced_since: dict[str, float] = field(default_factory=dict)
    _crashes: dict[tuple[str, str], int] = field(default_factory=dict)
    """Of a task before the first look: what was long ago is no reason now. Likewise `_deaths`."""
    _deaths: dict[str, int] | None = None
    _asked_at: float = float("-inf")
    _num_asked: int = 0

    def look(self, replicas: list[fleet.Replica]) -> str | None:
        """Why it will not come up, and where to read more; None while it may."""
        return self._service() or self._replica(replicas) or self._task()

    def _service(self) -> str | None:
        deaths = read_json(self.state.deaths) or {}
        self._deaths = deaths if self._deaths is None else self._deaths
        worst = max(deaths, key=lambda name: deaths[name], default="")
        if not worst or deaths[worst] < MOST_DEATHS or deaths == self._deaths:
            return None
        return f"{worst} has ended {deaths[worst]} times in a row (log: {self.state.log(worst)})"

    def _replica(self, replicas: list[fleet.Replica]) -> str | None:
        for replica in replicas:
            name = replica.ref.id
            if replica.state == worker.REPLICA_STATE_READY:
                self._pids.pop(name, None)
            elif replica.pid:
                self._pids.setdefault(name, set()).add(replica.pid)
            if len(self._pids.get(name, ())) > MOST_DEATHS:
                words = f": {replica.progress}" if replica.progress else ""
                return (
                    f"replica {name} of pool {replica.pool} has died {MOST_DEATHS} times before it was ready{words} "
                    f"(log: {self._log(name)})"
                )
            is_unplaced = replica.state == worker.REPLICA_STATE_GONE and not replica.pid and replica.progress
            if not is_unplaced:
                self._unplaced_since.pop(name, None)
            elif self.clock() - self._unplaced_since.setdefault(name, self.clock()) > NO_PLACE_S:
                return f"replica {name} of pool {replica.pool} has no place: {replica.progress}"
        return None

    def _log(self, replica: str) -> str:
        return str(next(iter(workers.log_files(self.state, replica)), "headrace logs worker"))

    def _task(self) -> str | None:
        if self.clock() - self._asked_at < _METRICS_EVERY_S:
            return None
        self._asked_at, self._num_asked = self.clock(), self._num_asked + 1
        for service in SERVICES:
            for task, count in crashes(self._metrics(service)).items():
                before = self._crashes.setdefault((service, task), count if self._num_asked == 1 else 0)
                if count - before >= MOST_DEATHS:
                    log = self.state.log(service)
                    return f"background task {task} of {service} has crashed {count - before} times (log: {log})"
        return None

    def _metrics(self, service: str) -> str:
        announced = self.state.announced(service)
        if announced is None:
            return ""
        token = self.state.read_secret(self.state.service_token)
        request = urllib.request.Request(
            f"http://{announced['http']}/metrics", headers={"authorization": f"Bearer {token}"}
        )
        try:
            with _DIRECT.open(request, timeout=2.0) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return ""  # it is starting or gone: told elsewhere


def crashes(metrics: str) -> dict[str, int]:
    """How often each background task has crashed."""
    return {name: int(float(count)) for name, count in _CRASHES.findall(metrics)}


def where(state: StateDir) -> str:
    """Where a person reads on."""
    folder: Path = state.of("controlplane") / "workers"
    return f"logs: {state.root / 'logs'}, of replicas: {folder}"
