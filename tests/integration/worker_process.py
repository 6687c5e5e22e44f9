"""A real worker process on loopback and a raw client of its contract, for the tests beside this file."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil

from headrace.v1 import worker_pb2, worker_pb2_grpc
from headrace_kit import channels

TOKEN = "worker-test-token"
_numbers = itertools.count()


def pack(ids: list[int]) -> bytes:
    return array("I", ids).tobytes()


def script(*elements: object) -> bytes:
    """A raw completion whose text is the JSON array: bos, then its bytes."""
    return pack([256, *json.dumps(elements).encode()])


async def eventually(condition: Callable[[], Any], limit_s: float = 30.0) -> Any:
    """The first true value of the condition; fails if there is none in time, which is long for a busy host's sake."""
    until = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < until, f"not within {limit_s} s"
        await asyncio.sleep(0.01)
    return value


@dataclass
class Worker:
    """A running worker process."""

    process: subprocess.Popen[bytes]
    grpc: str
    http: str
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def engine_pid(self) -> int:
        (child,) = psutil.Process(self.pid).children()
        return child.pid

    def readyz(self) -> int:
        """The status, or 0 when nobody answers."""
        try:
            return httpx.get(f"http://{self.http}/readyz", trust_env=False).status_code
        except httpx.TransportError:
            return 0

    def progress(self) -> str:
        """What the engine's health says."""
        report = httpx.get(f"http://{self.http}/readyz", trust_env=False).json()
        return str(report["components"]["engine"]["reason"])


def start(directory: Path, *flags: str) -> subprocess.Popen[bytes]:
    """The process of a scripted worker, unless the flags name another engine; announce.json says when it listens."""
    directory.mkdir(parents=True, exist_ok=True)
    token, announce = directory / "token", directory / "announce.json"
    token.write_text(TOKEN)
    announce.unlink(missing_ok=True)
    command = [sys.executable, "-m", "headrace_worker", "--service-token-file", str(token)]
    command += ["--state-dir", str(directory / "state"), "--announce", str(announce)]
    command += [*([] if "--engine" in flags else ["--engine", "scripted"]), *flags]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    with (directory / "log").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environ)


@contextlib.asynccontextmanager
async def worker(directory: Path, *flags: str, ready_s: float = 90.0) -> AsyncIterator[Worker]:
    """A scripted worker; further flags come behind. Killed at the end, if it still lives."""
    announce, log = directory / "announce.json", directory / "log"
    process = start(directory, *flags)
    try:
        await eventually(lambda: announce.exists() or process.poll() is not None, 30)
        assert process.poll() is None, log.read_text()
        facts = json.loads(announce.read_text())
        running = Worker(process, facts["grpc"], facts["http"], log)
        await eventually(lambda: running.readyz() == 200 or process.poll() is not None, ready_s)
        assert process.poll() is None, log.read_text()
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


@dataclass
class Choice:
    """What one handle has received."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finals: list[worker_pb2.Final] = field(default_factory=list)


class Client:
    """One Attach. Everything received is kept by handle."""

    def __init__(self, target: str, gateway_id: str = "gateway-1", token: str = TOKEN, **options: int) -> None:
        self.channel = channels.connect(target, token=token, options=list(options.items()))
        self.stub = worker_pb2_grpc.EngineStub(self.channel)
        self.gateway_id = gateway_id
        self.call: Any = None
        self.epoch = ""
        self.frames: list[worker_pb2.Frame] = []
        self.accepted: dict[int, worker_pb2.Accepted] = {}
        self.refused: dict[int, worker_pb2.Refused] = {}
        self.choices: dict[int, Choice] = {}
        self.orphans: list[worker_pb2.Orphan] = []
        self.ended: BaseException | bool = False
        self._next = 1
        self._unique = next(_numbers)
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Client:
        self.call = self.stub.Attach()
        hello = worker_pb2.Hello(gateway_id=self.gateway_id, gateway_epoch="1")
        await self.call.write(worker_pb2.Command(hello=hello))
        self.read_frame(await self.call.read())
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()
        await self.channel.close()

    async def leave(self) -> None:
        self.call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while (frame := await self.call.read()) is not grpc.aio.EOF:
                self.read_frame(frame)
            self.ended = True
        except grpc.RpcError as error:
            self.ended = error

    def choice(self, handle: int) -> Choice:
        return self.choices.setdefault(handle, Choice())

    def read_frame(self, frame: worker_pb2.Frame) -> None:
        self.frames.append(frame)
        self.epoch = frame.epoch
        self.accepted |= {accepted.handle: accepted for accepted in frame.accepted}
        self.refused |= {refused.handle: refused for refused in frame.refused}
        ids, start = array("I", frame.token_ids), 0
        for handle, count in zip(frame.handles, frame.num_tokens, strict=True):
            assert not self.choice(handle).finals, f"handle {handle} got tokens after its final"
            self.choice(handle).ids += ids[start : start + count]
            start += count
        assert start == len(ids)
        for entry in frame.logprobs:
            self.choice(entry.handle).logprobs += entry.tokens
        for final in frame.finals:
            self.choice(final.handle).finals.append(final)
        self.orphans += frame.orphans

    def name(self, handle: int) -> str:
        """The response id of a handle, unless the Submit named another."""
        return f"resp-{self._unique}-{handle}"

    async def submit(self, prompt: bytes, **fields: Any) -> int:
        """Sends a Submit with these fields over the defaults; returns its handle."""
        handle = self._next
        defaults: dict[str, Any] = {
            "handle": handle,
            "response_id": self.name(handle),
            "attempt": 1,
            "replica_epoch": self.epoch,
            "prompt_ids": prompt,
            "max_output_tokens": 64,
            "n": 1,
            "fair_key": f"key-{handle}",
            "tenant_digest": b"tenant",
            "gateway_id": self.gateway_id,
        }
        submit = worker_pb2.Submit(**(defaults | fields))
        self._next = handle + max(1, min(submit.n, 200))
        await self.call.write(worker_pb2.Command(submit=submit))
        return handle

    async def cancel(self, response_id: str, **fields: Any) -> None:
        defaults: dict[str, Any] = {"response_id": response_id, "choice": -1, "reason": "client"}
        await self.call.write(worker_pb2.Command(cancel=worker_pb2.Cancel(**(defaults | fields))))

    async def ack(self, *response_ids: str) -> None:
        refs = [worker_pb2.AttemptRef(response_id=each, attempt=1) for each in response_ids]
        await self.call.write(worker_pb2.Command(ack=worker_pb2.Ack(attempts=refs)))

    async def final(self, handle: int, limit_s: float = 30.0) -> worker_pb2.Final:
        """The one final of a handle, which must not have been refused."""
        await eventually(lambda: self.choice(handle).finals or handle in self.refused, limit_s)
        assert handle not in self.refused, self.refused[handle]
        (final,) = self.choice(handle).finals
        return final

    async def refusal(self, handle: int, limit_s: float = 30.0) -> worker_pb2.Refused:
        refused: worker_pb2.Refused = await eventually(lambda: self.refused.get(handle), limit_s)
        return refused

    async def load(self) -> worker_pb2.Load:
        """The replica's load right now."""
        watch = self.stub.Watch(worker_pb2.WatchRequest(router_id="test"))
        async for event in watch:
            if event.WhichOneof("event") == "load":
                watch.cancel()
                load: worker_pb2.Load = event.load
                return load
        raise AssertionError("the watch ended")

    async def idle(self) -> worker_pb2.Load:
        """The load once nothing waits or runs; everything that was reserved must have come back."""
        until = time.monotonic() + 30
        while (load := await self.load()).num_running or load.num_waiting:
            assert time.monotonic() < until, load
        assert (load.num_promised_pages, load.num_held_pages, load.num_queued_tokens) == (0, 0, 0), load
        return load
