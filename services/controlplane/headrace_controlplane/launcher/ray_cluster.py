"""Replicas on a Ray cluster, which outlive the control plane and are adopted when it returns. Knows no registry.

Says what is wanted in files, and reads there what there is; a keeper process (ray_keeper.py) does it. That one is
started with the first replica, and again with back-off whenever it ends.
"""

import importlib.util
import logging
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace_controlplane.launcher.base import Launched, LaunchSpec
from headrace_controlplane.launcher.last_words import opened_log
from headrace_controlplane.launcher.ray_files import RayFiles, Wanted
from headrace_controlplane.launcher.ray_replica import DIRECTORY, NODE_IP
from headrace_kit.lifecycle import backoff_s

log = logging.getLogger(__name__)
_BACKOFF_CAP_S = 30.0
# Flags that name files of this host: their content goes along. The key of a name is the file beside the log there.
_SHIPPED = {"--service-token-file": "token", "--tls-ca": "ca.pem", "--tls-cert": "cert.pem", "--tls-key": "key.pem"}
_MISSING = "the launcher ray needs Ray: pip install 'headrace-controlplane[ray]', in the same version as the cluster's"


@dataclass(frozen=True)
class RaySite:
    """Which cluster, whose actors there are ours, and where they keep their files on each node."""

    address: str = "auto"
    namespace: str = "headrace"
    directory: Path = Path("/var/tmp/headrace")


class RayLauncher:
    """Implements Launcher; ``root`` holds the files of all replicas."""

    def __init__(
        self,
        root: Path,
        site: RaySite,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._site, self._wall, self._clock = root, site, wall, clock
        self._files = RayFiles(root)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._num_ends, self._keep_at = 0, 0.0
        self._is_installed = importlib.util.find_spec("ray") is not None

    def observe(self) -> list[Launched]:
        found = self._files.specs()
        if found:
            self._keep()
        return [self._look(raw) for raw in found.values()]

    def start(self, spec: LaunchSpec) -> None:
        command, shipped = _portable(spec.command)
        wanted = Wanted(
            spec.replica_id,
            secrets.token_hex(4),
            command,
            shipped,
            str(self._site.directory),
            spec.num_cpus,
            spec.num_gpus,
            spec.drain_s,
        )
        self._files.want(wanted, asdict(spec))
        log.info("replica_started", extra={"replica": spec.replica_id, "actor": wanted.actor})
        self._keep()

    def stop(self, replica_id: str) -> None:
        """The worker drains; it is killed, with its ranks, when it has not left in time."""
        self._files.stop(replica_id, self._wall())
        log.info("replica_stopped", extra={"replica": replica_id})

    def forget(self, replica_id: str) -> None:
        self._files.forget(replica_id)

    def close(self) -> None:
        """Ends the keeper; replicas stay."""
        if self._keeper is not None:
            assert self._keeper.stdin is not None, "the keeper was given a pipe"
            self._keeper.stdin.close()
            self._keeper.wait()

    def _look(self, raw: Mapping[str, Any]) -> Launched:
        spec = LaunchSpec(**{**raw["spec"], "command": tuple(raw["spec"]["command"]), "devices": ()})
        stopping = self._files.stopping_since(spec.replica_id) is not None
        found = self._files.found(spec.replica_id)
        if found is None or found.start != raw["wanted"]["start"]:
            return Launched(spec, alive=True, stopping=stopping, last_words=self._trouble())
        words = found.words or (self._trouble() if found.alive else "")
        return Launched(spec, alive=found.alive, pid=found.pid, stopping=stopping, last_words=words)

    def _trouble(self) -> str:
        return self._files.word if self._is_installed else _MISSING

    def _keep(self) -> None:
        """Starts the keeper unless it runs, or ended a moment ago."""
        now = self._clock()
        if not self._is_installed or now < self._keep_at or (self._keeper is not None and self._keeper.poll() is None):
            return
        if self._keeper is not None:
            log.warning("ray_keeper_ended", extra={"exit_code": self._keeper.returncode, "detail": self._files.word})
        self._keep_at = now + backoff_s(self._num_ends, base_s=1.0, cap_s=_BACKOFF_CAP_S)
        self._num_ends += 1
        words = [str(self._root), self._site.address, self._site.namespace]
        with opened_log(self._root / "keeper.log") as output:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "headrace_controlplane.launcher.ray_keeper", *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )


def _portable(command: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """The command as any node can run it, and the files that go with it; addresses and directories are the node's."""
    words, shipped, given = [], {}, set[str]()
    for flag, word in zip(("", *command), command, strict=False):
        given.add(flag)
        if flag in _SHIPPED:
            shipped[_SHIPPED[flag]] = Path(word).read_text("utf-8")
            words.append(f"{DIRECTORY}/{_SHIPPED[flag]}")
        elif flag == "--state-dir":
            words.append(f"{DIRECTORY}/../weights")
        elif flag == "--announce":
            words.append(f"{DIRECTORY}/announce.json")
        else:
            words.append(word)
    if "headrace_worker" in command and "--grpc-listen" not in given:
        words += ["--grpc-listen", f"{NODE_IP}:0", "--http-listen", f"{NODE_IP}:0"]
    return words, shipped
