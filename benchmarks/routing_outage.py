"""A platform whose control plane is gone: streams under load, and services that start from what they have on disk.

Every process is started here and nobody restarts it, so that what is stopped stays away. The worker is scripted, keeps
its address over a restart and was started by no launcher.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from headrace_cli.client import AsyncClient, StreamBroken
from headrace_cli.platform import redis_server
from headrace_cli.platform.commands import service_command
from headrace_cli.platform.state_dir import SERVICES, StateDir, assign_addresses
from headrace_kit.errors import HeadraceError

FLEET = """
models: {scripted: {source: scripted}}
pools: {main: {model: scripted, engine: scripted, launcher: external, min: 1}}
classes: {standard: {ttft_ms: 30000, default: true}}
tenants: {dev: {}}
"""
RESTARTED = ("router", "policy", "gateway", "worker")
NUM_CLIENTS = 16
READY_S = 30.0
PROMPT = [{"role": "user", "content": json.dumps(["a", "!rate(50)", "!repeat(24,x)", "z"])}]


@dataclass
class Site:
    """The processes of one platform, by name."""

    state: StateDir
    addresses: dict[str, dict[str, str]]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def prepare(cls, root: Path) -> "Site":
        state = StateDir(root)
        state.prepare()
        (root / "fleet.yaml").write_text(FLEET)
        addresses = assign_addresses(state)
        # The worker's are chosen like those of a service: it has to be found where it was.
        spare = StateDir(root / "worker-addresses")
        spare.prepare()
        return cls(state, {**addresses, "worker": assign_addresses(spare)["router"]})

    def start(self, name: str) -> None:
        with self.state.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(self._command(name), stdout=log, stderr=log)

    def end(self, name: str, *, kill: bool = False) -> None:
        process = self.running.pop(name)
        process.kill() if kill else process.terminate()
        process.wait(READY_S)

    def is_ready(self, name: str) -> bool:
        assert self.running[name].poll() is None, f"{name} ended: {self.state.log(name).read_text()[-2000:]}"
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://{self.addresses[name]['http']}/readyz", trust_env=False).status_code == 200
        return False

    def client(self) -> AsyncClient:
        key = self.state.api_key.read_text().strip()
        return AsyncClient(self.addresses["gateway"]["public_grpc"], api_key=key)

    def _command(self, name: str) -> list[str]:
        if name == "redis":
            return redis_server.command(self.state)
        if name != "worker":
            return service_command(name, self.state, self.addresses, self.state.root / "fleet.yaml")
        flags = {
            "engine": "scripted",
            "model": "scripted",
            "revision": "1",
            "pool": "main",
            "replica-id": "main-0",
            "controlplane": self.addresses["controlplane"]["grpc"],
            "grpc-listen": self.addresses["worker"]["grpc"],
            "http-listen": self.addresses["worker"]["http"],
            "service-token-file": self.state.service_token,
            "state-dir": self.state.of("worker"),
        }
        return [sys.executable, "-m", "headrace_worker", *(f"--{flag}={value}" for flag, value in flags.items())]


@contextlib.asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """A platform that answers."""
    with tempfile.TemporaryDirectory(prefix="hr-outage-") as folder:
        made = Site.prepare(Path(folder))
        try:
            for name in ("redis", *SERVICES, "worker"):
                made.start(name)
            for name in (*SERVICES, "worker"):
                await _until(lambda name=name: _is_ready(made, name), f"{name} is ready")  # type: ignore[misc]
            await _until(lambda: answers(made), "it answers")
            yield made
        finally:
            for name in list(made.running):
                made.end(name, kill=True)


@dataclass(frozen=True)
class Outage:
    """What an outage of the control plane came to."""

    endings: Counter[str]
    num_restarted_ready: int
    ready_s: dict[str, float]

    @property
    def num_failed(self) -> int:
        return sum(self.endings.values()) - self.endings["completed"]


async def outage(outage_s: float) -> Outage:
    """Kills the control plane under load for so long; then, with it away, restarts the others one after another."""
    async with site() as made:
        made.end("controlplane", kill=True)
        endings = await _load(made, outage_s)
        ready_s: dict[str, float] = {}
        for name in RESTARTED:
            await asyncio.to_thread(made.end, name)
            started = time.monotonic()
            made.start(name)
            await _until(lambda name=name: _is_ready(made, name), f"{name} is ready again")  # type: ignore[misc]
            await _until(lambda: answers(made), f"it answers with a restarted {name}")
            ready_s[name] = time.monotonic() - started
        return Outage(endings, len(ready_s), ready_s)


async def answers(made: Site) -> bool:
    async with made.client() as client:
        return await _ask(client, 5.0) == "completed"


async def _load(made: Site, duration_s: float) -> Counter[str]:
    """Clients that ask again as soon as they were answered; how each request ended."""
    endings: Counter[str] = Counter()
    until = time.monotonic() + duration_s

    async def ask_again(client: AsyncClient) -> None:
        while time.monotonic() < until:
            endings[await _ask(client, 30.0)] += 1

    async with made.client() as client:
        await asyncio.gather(*(ask_again(client) for _ in range(NUM_CLIENTS)))
    return endings


async def _ask(client: AsyncClient, deadline_s: float) -> str:
    try:
        async with client.generate("scripted", PROMPT, deadline_s=deadline_s) as stream:
            async for _ in stream:
                pass
            return stream.kind or "without a terminal"
    except StreamBroken:
        return "broken"
    except HeadraceError as error:
        return f"refused: {error.reason}"


async def _is_ready(made: Site, name: str) -> bool:
    return await asyncio.to_thread(made.is_ready, name)


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + READY_S
    while not await condition():
        assert time.monotonic() < deadline, f"{what}: not within {READY_S} s"
        await asyncio.sleep(0.05)
