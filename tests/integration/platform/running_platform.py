"""A whole platform of real processes on loopback, started and stopped by the `headrace` command itself."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil

from headrace.v1 import worker_pb2, worker_pb2_grpc
from headrace_cli.client import AsyncClient, Client

ROOT = Path(__file__).parents[3]
SCRIPTED = ROOT / "examples/scripted.yaml"


def run_headrace(state_dir: Path, *words: str, timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
    """One call of the command; its output is in the result."""
    command = [sys.executable, "-m", "headrace_cli", words[0], "--state-dir", str(state_dir), *words[1:]]
    environ = {**os.environ, "http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
    # A machine that is busy with tests is slow to answer; that is not what they are about.
    environ["HEADRACE_POLICY_REDIS_DECIDE_S"] = "0.5"
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environ, check=False)


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)
    return value


class Platform:
    """One running platform; addresses are read anew each time, for services restart."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir

    def headrace(self, *words: str, timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
        return run_headrace(self.state_dir, *words, timeout_s=timeout_s)

    def status(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.headrace("status", "--json").stdout)
        return report

    def announced(self, service: str) -> dict[str, Any]:
        """What a service says of itself, once it runs."""
        path = self.state_dir / "announce" / f"{service}.json"
        wait_until(path.exists, f"{service} announces itself")
        content: dict[str, Any] = json.loads(path.read_text())
        return content

    @property
    def api_key(self) -> str:
        return (self.state_dir / "api-key").read_text().strip()

    @property
    def service_token(self) -> str:
        return (self.state_dir / "service-token").read_text().strip()

    @property
    def http(self) -> str:
        return f"http://{self.announced('gateway')['public_http']}"

    @property
    def grpc(self) -> str:
        return str(self.announced("gateway")["public_grpc"])

    def client(self) -> Client:
        return Client(self.grpc, api_key=self.api_key)

    def async_client(self) -> AsyncClient:
        return AsyncClient(self.grpc, api_key=self.api_key)

    def worker_pids(self) -> list[int]:
        """Processes of the workers: parents, as the launcher recorded them."""
        records = (self.state_dir / "services/controlplane/workers").glob("*.json")
        pids = [json.loads(path.read_text())["pid"] for path in records]
        return [pid for pid in pids if psutil.pid_exists(pid)]

    def engine_pids(self) -> list[int]:
        """Engine children of the workers."""
        return [child.pid for pid in self.worker_pids() for child in psutil.Process(pid).children()]

    def load(self) -> worker_pb2.Load:
        """What the first worker carries, by its own word."""
        workers = [row for row in self.status()["services"] if row["name"].startswith("worker/")]
        metadata = (("authorization", f"Bearer {self.service_token}"),)
        with grpc.insecure_channel(workers[0]["grpc"], (("grpc.enable_http_proxy", 0),)) as channel:
            stub: Any = worker_pb2_grpc.EngineStub(channel)
            for event in stub.Watch(worker_pb2.WatchRequest(router_id="test"), timeout=10.0, metadata=metadata):
                if event.WhichOneof("event") == "load":
                    load: worker_pb2.Load = event.load
                    return load
        raise AssertionError("the watch ended without a load")

    def kill(self, service: str) -> None:
        """SIGKILL to one service; whoever supervises it starts it again."""
        os.kill(self.announced(service)["pid"], signal.SIGKILL)

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        def ready() -> bool:
            result = self.headrace("status", "--json")
            return result.returncode == 0 and any(
                row["name"].startswith("worker/") and row["ready"] for row in json.loads(result.stdout)["services"]
            )

        wait_until(ready, "the platform is ready", timeout_s)


@contextlib.contextmanager
def running_platform(state_dir: Path, fleet: Path = SCRIPTED) -> Iterator[Platform]:
    """Up, and down whatever happens; nothing of it may be left."""
    up = run_headrace(state_dir, "up", "--detach", "--fleet", str(fleet), "--timeout", "60")
    assert up.returncode == 0, f"{up.stderr}\n{_logs(state_dir)}"
    platform = Platform(state_dir)
    workers = platform.worker_pids()
    try:
        yield platform
    finally:
        down = run_headrace(state_dir, "down", timeout_s=120.0)
        assert down.returncode == 0, down.stderr
        left = [pid for pid in workers if psutil.pid_exists(pid)]
        assert not left, f"workers outlived the platform: {left}"


def _logs(state_dir: Path) -> str:
    return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in (state_dir / "logs").glob("*.log"))
