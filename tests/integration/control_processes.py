"""Real control planes, routers and workers on loopback, for the tests beside this file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, response_pb2, routing_pb2, routing_pb2_grpc, worker_pb2
from headrace_kit import channels

TOKEN = "control-test-token"
LIMIT_S = 30.0
FLEET = """
models: {scripted: {source: scripted}}
pools: {scripted: {model: scripted, engine: scripted, num_pages: 64}}
rollout: {drain_s: 1}
"""
EXTERNAL = FLEET.replace("num_pages: 64", "num_pages: 64, launcher: external, min: 0, max: 2, hold_s: 0.5")
"""Whose workers a test starts itself."""


async def eventually(condition: Callable[[], Awaitable[Any]], limit_s: float = LIMIT_S) -> Any:
    """The first true value of the condition; fails if there is none in time."""
    until = time.monotonic() + limit_s
    while not (value := await condition()):
        assert time.monotonic() < until, f"not within {limit_s} s"
        await asyncio.sleep(0.02)
    return value


@dataclass
class Process:
    """A running service."""

    name: str
    child: subprocess.Popen[bytes]
    addresses: dict[str, Any]

    @property
    def grpc(self) -> str:
        return str(self.addresses["grpc"])

    @property
    def http(self) -> str:
        return str(self.addresses["http"])

    def readyz(self) -> int:
        return httpx.get(f"http://{self.http}/readyz", trust_env=False).status_code

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(LIMIT_S)


@dataclass
class Site:
    """A directory with everything of one test, and the processes that run in it."""

    root: Path
    fleet: str = FLEET
    processes: list[Process] = field(default_factory=list)
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.root / "controlplane"

    @property
    def admin_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-headrace-admin-key", (self.state / "admin_key").read_text().strip()),)

    async def controlplane(self, *flags: str, listen: str = "127.0.0.1:0") -> Process:
        (self.root / "fleet.yaml").write_text(self.fleet)
        own = ("--fleet", str(self.root / "fleet.yaml"), "--bootstrap-key-file", str(self.root / "api_key"))
        return await self.start("controlplane", *own, "--grpc-listen", listen, *flags)

    async def router(self, controlplane: str, name: str = "router") -> Process:
        """One that has its first snapshot, as whoever asks for /readyz before it sends requests."""
        router = await self.start("router", "--controlplane", controlplane, directory=name)

        async def ready() -> bool:
            return router.readyz() == 200

        await eventually(ready)
        return router

    async def worker(self, controlplane: str, replica_id: str) -> Process:
        """One that no launcher started."""
        own = ("--engine", "scripted", "--model", "scripted", "--revision", "1", "--pool", "scripted")
        rest = ("--controlplane", controlplane, "--replica-id", replica_id, "--num-pages", "64")
        return await self.start("worker", *own, *rest, directory=replica_id)

    async def start(self, service: str, *flags: str, directory: str = "") -> Process:
        name = directory or service
        token, announce = self.root / "token", self.root / f"{name}.announce.json"
        token.write_text(TOKEN)
        announce.unlink(missing_ok=True)
        command = [sys.executable, "-m", f"headrace_{service}", "--service-token-file", str(token)]
        command += ["--state-dir", str(self.root / name), "--announce", str(announce), *flags]
        with (self.root / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220
        process = Process(name, child, {})
        self.processes.append(process)

        async def announced() -> bool:
            assert child.poll() is None, (self.root / f"{name}.log").read_text()[-3000:]
            return announce.exists()

        await eventually(announced)
        process.addresses = json.loads(announce.read_text())
        return process

    def channel(self, target: str, token: str | None = TOKEN) -> grpc.aio.Channel:
        self.channels.append(channels.connect(target, token=token))
        return self.channels[-1]

    def admin(self, controlplane: Process) -> Admin:
        return Admin(fleet_pb2_grpc.AdminStub(self.channel(controlplane.grpc)), self)

    def routes(self, router: Process) -> Routes:
        return Routes(routing_pb2_grpc.RouterStub(self.channel(router.grpc)))

    def launched_pids(self) -> list[int]:
        """Workers of the process launcher that run now."""
        pids = []
        for path in sorted((self.state / "workers").glob("*.json")):
            facts = json.loads(path.read_text())
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(facts["pid"])
                if abs(process.create_time() - facts["started_at"]) < 1 and process.status() != psutil.STATUS_ZOMBIE:
                    pids.append(process.pid)
        return pids

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()
        for process in self.processes:
            if process.child.poll() is None:
                process.kill()
        # Also those that were launched a moment ago and have no record yet, or whose record a test took away.
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(str(self.root) in word for word in each.cmdline()):
                    each.kill()


@dataclass
class Admin:
    """Admin calls with the admin key."""

    stub: Any
    site: Site

    async def call(self, method: str, request: Any, timeout_s: float = 20.0) -> Any:
        return await getattr(self.stub, method)(request, timeout=timeout_s, metadata=self.site.admin_metadata)

    async def apply(self, text: str) -> fleet_pb2.ApplyResponse:
        answer = await self.call("Apply", fleet_pb2.ApplyRequest(fleet_yaml=text, comment="test"))
        assert isinstance(answer, fleet_pb2.ApplyResponse)
        return answer

    async def replicas(self) -> dict[str, fleet_pb2.Replica]:
        answer = await self.call("ListReplicas", fleet_pb2.ListReplicasRequest())
        return {replica.ref.id: replica for replica in answer.replicas}

    async def ready(self, *replica_ids: str) -> dict[str, fleet_pb2.Replica]:
        """Waits until exactly these are there and ready."""

        async def all_ready() -> Any:
            found = await self.replicas()
            states = {name: replica.state for name, replica in found.items()}
            return found if states == dict.fromkeys(replica_ids, worker_pb2.REPLICA_STATE_READY) else None

        found: dict[str, fleet_pb2.Replica] = await eventually(all_ready)
        return found


@dataclass
class Routes:
    """Routes as a gateway asks for them, and reports each outcome."""

    stub: Any

    async def pick(self, timeout_s: float = 20.0, **facts: Any) -> routing_pb2.RouteResponse:
        bounds = response_pb2.Bounds(num_prompt_tokens=22, max_output_tokens=5, n=1)
        request = {"response_id": "r", "attempt": 1, "model": "scripted", "bounds": bounds, **facts}
        answer = await self.stub.Route(routing_pb2.RouteRequest(**request), timeout=timeout_s)
        assert isinstance(answer, routing_pb2.RouteResponse)
        row = routing_pb2.AttemptOutcome(decision_id=answer.decision_id, response_id="r", outcome="completed")
        await self.stub.Report(routing_pb2.ReportRequest(outcomes=[row]), timeout=30)
        return answer
