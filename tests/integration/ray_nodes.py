"""A Ray cluster of several nodes on this host, on loopback, for the tests beside this file."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from headrace_controlplane.launcher.ray_cluster import RayLauncher, RaySite
from headrace_controlplane.launcher.ray_files import RayFiles
from headrace_controlplane.launcher.ray_keeper import Keeper

_STORE_BYTES = 80 * 1024 * 1024


class RayNodes:
    """A head without room for replicas, and nodes of one CPU each."""

    def __init__(self, num_nodes: int) -> None:
        self._host = 1
        # Sockets have short names, and another cluster's files are not ours to find.
        self._temporary = tempfile.mkdtemp(prefix="hr-ray-")
        os.environ.update(RAY_TMPDIR=self._temporary, RAY_USAGE_STATS_ENABLED="0")
        self.cluster: Any = Cluster(initialize_head=True, head_node_args=self._node(0))
        self.nodes = [self.cluster.add_node(wait=True, **self._node(1)) for _ in range(num_nodes)]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> Any:
        self.nodes.append(self.cluster.add_node(wait=True, **self._node(1)))
        return self.nodes[-1]

    def lose(self, node: Any) -> None:
        """As when its power fails."""
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def node_of(self, pid: int) -> Any:
        """The node whose raylet is an ancestor of a process."""
        parents = {parent.pid for parent in psutil.Process(pid).parents()}
        (found,) = [node for node in self.nodes if self._raylet(node) in parents]
        return found

    def close(self) -> None:
        self.cluster.shutdown()
        del os.environ["RAY_TMPDIR"]
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _raylet(self, node: Any) -> int:
        return int(node.all_processes["raylet"][0].process.pid)

    def _node(self, num_cpus: int) -> dict[str, Any]:
        """An address of its own on loopback (Ray takes 127.0.0.1 for any address of the host), and known ports, since
        its agents are not given the time to tell theirs on a busy host."""
        self._host += 1
        ports = ("metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port", "metrics_export_port")
        return {
            "num_cpus": num_cpus,
            "object_store_memory": _STORE_BYTES,
            "node_ip_address": f"127.0.0.{self._host}",
            "include_log_monitor": False,
            "include_dashboard": False,
            **{name: _free_port() for name in ports},
        }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RayPlace:
    """Launchers of one control plane after another on a cluster, in a namespace of their own."""

    limit_s = 90.0

    def __init__(self, nodes: RayNodes, root: Path) -> None:
        self.nodes, self.root = nodes, root
        self._namespace, self._made = f"test-{root.name}", list[RayLauncher]()

    def launcher(self, wall: Callable[[], float] = time.time) -> RayLauncher:
        for earlier in self._made:
            earlier.close()
        site = RaySite(self.nodes.address, self._namespace, self.root / "node")
        self._made.append(RayLauncher(self.root / "ray", site, wall=wall))
        return self._made[-1]

    def log(self, replica_id: str = "cpu-0") -> str:
        path = self.root / "node" / replica_id / "log"
        return path.read_text() if path.exists() else ""

    def crash(self) -> None:
        """Ends the actor, which the replica may not outlive."""
        (seen,) = self._made[-1].observe()
        os.kill(psutil.Process(seen.pid).ppid(), signal.SIGKILL)

    def close(self) -> None:
        """Everything leaves the cluster."""
        last = self.launcher()
        for seen in last.observe():
            last.forget(seen.spec.replica_id)
        keeper = Keeper(RayFiles(self.root / "ray"), self._namespace)
        last.close()
        with ray.init(address=self.nodes.address, namespace=self._namespace, log_to_driver=False):
            keeper.look()
