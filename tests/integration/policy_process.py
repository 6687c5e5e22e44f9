"""A real policy process on loopback, started from a snapshot on disk, without a control plane."""

import asyncio
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import httpx

from headrace.v1 import fleet_pb2, policy_pb2_grpc, snapshot_pb2
from headrace_kit import channels

TOKEN = "the-service-token"


class PolicyProcess:
    """Its log is everything that it ever wrote to stderr and stdout."""

    def __init__(
        self,
        folder: Path,
        section: snapshot_pb2.PolicySection,
        redis_url: str,
        *flags: str,
        log_level: str = "debug",
    ) -> None:
        self._folder, self._redis_url = folder, redis_url
        self._flags = (*flags, f"--log-level={log_level}")
        folder.mkdir()
        (folder / "token").write_text(TOKEN)
        packed = section.SerializeToString()
        snapshot = fleet_pb2.Snapshot(version=7, section=packed, hash=hashlib.sha256(packed).digest())
        (folder / "snapshot.pb").write_bytes(snapshot.SerializeToString())
        self._process: subprocess.Popen[bytes] | None = None
        self.announced: dict[str, Any] = {}

    def start(self) -> "PolicyProcess":
        announce = self._folder / "announce.json"
        announce.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "headrace_policy",
            f"--state-dir={self._folder}",
            f"--announce={announce}",
            f"--service-token-file={self._folder / 'token'}",
            f"--redis={self._redis_url}",
            "--controlplane=127.0.0.1:9",
            *self._flags,
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(announce.exists, "policy does not start: " + self.log[-2000:])
        self.announced = json.loads(announce.read_text())
        wait_until(lambda: self.get("/readyz").status_code == 200, "policy is not ready")
        return self

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text("utf-8", "replace")

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"http://{self.announced['http']}{path}", headers=headers, trust_env=False, timeout=60)

    def channel(self, token: str | None = TOKEN) -> grpc.aio.Channel:
        return channels.connect(self.announced["grpc"], token=token)

    def stub(self, channel: grpc.aio.Channel) -> Any:
        return policy_pb2_grpc.PolicyStub(channel)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(15)
        finally:
            self._process.kill()


def wait_until(condition: Any, complaint: str, limit_s: float = 15.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.02)


async def wait_for(condition: Any, complaint: str, limit_s: float = 15.0) -> None:
    """``condition`` is a coroutine function."""
    deadline = time.monotonic() + limit_s
    while not await condition():
        assert time.monotonic() < deadline, complaint
        await asyncio.sleep(0.02)
