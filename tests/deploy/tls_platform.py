"""All five services on loopback under mutual TLS, configured by one file each, as a container would."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace_cli.__main__ import main
from headrace_cli.client import Client
from headrace_cli.platform import redis_server
from headrace_cli.platform.state_dir import StateDir
from headrace_kit.errors import HeadraceError

LIMIT_S = 30.0
FLEET = """
models: {scripted: {source: scripted}}
pools: {scripted: {model: scripted, engine: scripted, launcher: external, min: 1, max: 2}}
classes: {standard: {ttft_ms: 30000, max_queue_ms: 60000, delivery_reserve_ms: 20, default: true}}
tenants: {dev: {}}
"""
WORKER = ["--engine=scripted", "--model=scripted", "--pool=scripted", "--replica-id=w"]


class TlsPlatform:
    """``start`` each service in its order; ``target`` says where one listens.

    A service in ``elsewhere`` is run from the packages in that folder in place of the installed ones.
    """

    def __init__(self, root: Path, elsewhere: Mapping[str, Path]) -> None:
        self.root, self.certs, self._elsewhere = root, root / "certs", elsewhere
        self.processes: list[subprocess.Popen[bytes]] = []
        self.announced: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(SystemExit):
            main(["certs", "init", "--out", str(self.certs), "--for-containers"])
        (root / "fleet.yaml").write_text(FLEET)

    def start(self, service: str, *flags: str) -> None:
        announce = self.root / f"{service}.json"
        files = {"tls_ca": "ca.pem", "tls_cert": f"{service}.pem", "tls_key": f"{service}-key.pem"}
        files |= {"service_token_file": "service-token"}
        lines = [f'{name} = "{self.certs / file}"' for name, file in files.items()]
        lines += [f'state_dir = "{self.root / "state" / service}"', f'announce = "{announce}"', "drain_s = 1"]
        config = self.root / f"{service}.toml"
        config.write_text("\n".join(lines))
        command = [sys.executable, "-m", f"headrace_{service}", f"--config={config}", *flags]
        self._run(command, service)
        deadline = time.monotonic() + LIMIT_S
        while not announce.exists():
            assert time.monotonic() < deadline and self.processes[-1].poll() is None, self.log(service)
            time.sleep(0.02)
        self.announced[service] = json.loads(announce.read_text())

    def start_redis(self) -> str:
        """Its address."""
        state = StateDir(self.root / "redis")
        self._run(redis_server.command(state), "redis")
        deadline = time.monotonic() + LIMIT_S
        while not asyncio.run(redis_server.answers(state.redis_socket)):
            assert time.monotonic() < deadline, self.log("redis")
            time.sleep(0.02)
        return f"unix://{state.redis_socket}"

    def target(self, service: str, listener: str = "grpc") -> str:
        return str(self.announced[service][listener])

    @property
    def ca(self) -> bytes:
        return (self.certs / "ca.pem").read_bytes()

    @property
    def api_key(self) -> str:
        return (self.root / "bootstrap-key").read_text().strip()

    def client(self) -> Client:
        return Client(self.target("gateway", "public_grpc"), api_key=self.api_key, ca=self.ca)

    def wait_for_model(self) -> None:
        """Until the gateway has the card that the worker brought."""
        deadline = time.monotonic() + LIMIT_S
        with self.client() as client:
            while not self._models(client):
                assert time.monotonic() < deadline, self.log("gateway")
                time.sleep(0.05)

    @staticmethod
    def _models(client: Client) -> list[str]:
        """None while the gateway or what it needs still starts."""
        try:
            return [model.id for model in client.models()]
        except HeadraceError:
            return []

    def log(self, service: str) -> str:
        return (self.root / f"{service}.log").read_text()[-4000:]

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            process.wait(LIMIT_S)

    def _run(self, command: list[str], name: str) -> None:
        environ = dict(os.environ)
        if name in self._elsewhere:
            environ["PYTHONPATH"] = str(self._elsewhere[name])
        with (self.root / f"{name}.log").open("wb") as output:
            self.processes.append(subprocess.Popen(command, stdout=output, stderr=output, env=environ))


@contextlib.contextmanager
def tls_platform(root: Path, elsewhere: Mapping[str, Path] | None = None) -> Iterator[TlsPlatform]:
    platform = TlsPlatform(root, elsewhere or {})
    try:
        redis = platform.start_redis()
        keys = [f"--{name}-file={root / name}" for name in ("admin-key", "bootstrap-key")]
        platform.start("controlplane", f"--fleet={root / 'fleet.yaml'}", *keys)
        known = f"--controlplane={platform.target('controlplane')}"
        platform.start("worker", known, "--grpc-listen=0.0.0.0:0", *WORKER)
        platform.start("policy", known, f"--redis={redis}")
        platform.start("router", known)
        peers = [known, *(f"--{name}={platform.target(name)}" for name in ("policy", "router"))]
        public = [f"--public-tls-{part}={platform.certs / file}" for part, file in PUBLIC.items()]
        platform.start("gateway", *peers, *public)
        platform.wait_for_model()
        yield platform
    finally:
        platform.stop()


PUBLIC = {"cert": "public.pem", "key": "public-key.pem"}
