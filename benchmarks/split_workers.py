"""Two worker processes, one that prefills and one that decodes, and what goes between them: answers and page groups."""

import asyncio
import contextlib
import itertools
import json
import mmap
import random
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from headrace.v1 import response_pb2, worker_pb2, worker_pb2_grpc
from headrace_gateway.upstreams.worker_link import WorkerLink
from headrace_kit import channels
from headrace_worker.kv_pulls import Pulls
from headrace_worker.messages import Received
from headrace_worker.page_groups import CHANNEL_OPTIONS
from headrace_worker.scheduling.events import PagesWanted
from headrace_worker.transfer.image import PageImage
from headrace_worker.transfer.pages import PoolImages
from headrace_worker.transfer.shape import KvShape, Shard

TOKEN = "split-bench"
START_S = 300.0
PAGE_TOKENS = 16
_numbers = itertools.count(1)


@dataclass
class Running:
    """A worker process that is ready."""

    grpc: str
    described: worker_pb2.Description
    channel: Any

    @property
    def ref(self) -> response_pb2.ReplicaRef:
        epoch = self.described.replica.epoch
        return response_pb2.ReplicaRef(id=self.described.replica.id, epoch=epoch, endpoint=self.grpc)

    async def told(self, kind: str) -> worker_pb2.WatchEvent:
        """The first event of this kind that the replica tells to who begins to watch it."""
        stub: Any = worker_pb2_grpc.EngineStub(self.channel)
        watch = stub.Watch(worker_pb2.WatchRequest(router_id="bench"))
        async for event in watch:
            if event.WhichOneof("event") == kind:
                watch.cancel()
                found: worker_pb2.WatchEvent = event
                return found
        raise AssertionError("the watch ended")


@contextlib.asynccontextmanager
async def running(directory: Path, role: str, *flags: str) -> AsyncIterator[Running]:
    """Starts a worker, waits until it serves, kills it at the end."""
    announce = directory / "announce.json"
    process = _start(directory, role, *flags)
    try:
        until_s = time.monotonic() + START_S
        while not announce.exists():
            assert time.monotonic() < until_s and process.poll() is None, (directory / "log").read_text()
            await asyncio.sleep(0.1)
        target = json.loads(announce.read_text())["grpc"]
        channel = channels.connect(target, token=TOKEN)
        stub: Any = worker_pb2_grpc.EngineStub(channel)
        watch = stub.Watch(worker_pb2.WatchRequest(router_id="bench"))
        async for event in watch:
            if event.state == worker_pb2.REPLICA_STATE_READY:
                break
        watch.cancel()
        described = await stub.Describe(worker_pb2.DescribeRequest(), timeout=10.0)
        yield Running(target, described, channel)
        await channel.close()
    finally:
        process.kill()
        process.wait()


def _start(directory: Path, role: str, *flags: str) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True)
    token = directory / "token"
    token.write_text(TOKEN)
    command = [sys.executable, "-m", "headrace_worker", "--service-token-file", str(token), "--role", role]
    command += ["--state-dir", str(directory / "state"), "--announce", str(directory / "announce.json")]
    with (directory / "log").open("wb") as output:
        return subprocess.Popen([*command, *flags], stdout=output, stderr=output)


@contextlib.asynccontextmanager
async def standing_source(num_pages: int, shape: KvShape) -> AsyncIterator[Running]:
    """Hand-offs of pages that are always ready, from a process of their own."""
    command = (sys.executable, "-m", "benchmarks.split_source", str(num_pages), json.dumps(asdict(shape)))
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        target = (await process.stdout.readline()).decode().strip()
        described = worker_pb2.Description(replica=response_pb2.ReplicaRef(id="source", epoch="bench"))
        yield Running(target, described, None)
    finally:
        process.kill()
        await process.wait()


class Answer:
    """What one Submit brought, and when each token came."""

    def __init__(self, response_id: str) -> None:
        self.response_id = response_id
        self.ids: list[int] = []
        self.times_s: list[float] = []
        self.over = asyncio.Event()
        self.fault = ""

    def on_accepted(self, accepted: worker_pb2.Accepted) -> None: ...

    def on_refused(self, refused: worker_pb2.Refused) -> None:
        self.fault = refused.reason
        self.over.set()

    def on_final(self, final: worker_pb2.Final) -> None:
        self.fault = "" if final.kind == worker_pb2.FINAL_KIND_LENGTH else final.reason
        self.over.set()

    def on_lost(self, reason: str) -> None:
        self.fault = reason
        self.over.set()

    def on_tokens(self, choice: int, token_ids: Sequence[int], logprobs: Any) -> None:
        self.ids.extend(token_ids)
        self.times_s.extend([time.perf_counter()] * len(token_ids))


class Decoder:
    """Asks a decode replica for answers, whole or with a prefill replica."""

    def __init__(self, worker: Running) -> None:
        self._worker = worker
        self._link = WorkerLink(worker.channel, worker_pb2.Hello(gateway_id="bench"), lambda _link, _orphans: None)
        self._reading = asyncio.create_task(self._link.run(30.0))

    async def answer(self, prompt: list[int], num_out: int, prefill: Running | None) -> list[int]:
        """Greedy ids. Whole and split answers share no cached page. Retries once, as a gateway does."""
        answer = await self._try(prompt, num_out, prefill)
        if answer.fault in ("prefill_lost", "kv_expired"):
            answer = await self._try(prompt, num_out, prefill)
        assert not answer.fault, answer.fault
        return answer.ids

    def stream(self, prompt: list[int], num_out: int, prefill: Running | None = None) -> Answer:
        """An answer that has only begun."""
        answer = Answer(f"r{next(_numbers)}")
        submit = worker_pb2.Submit(
            response_id=answer.response_id,
            attempt=1,
            replica_epoch=self._worker.described.replica.epoch,
            prompt_ids=array("I", prompt).tobytes(),
            max_output_tokens=num_out,
            n=1,
            sampling=response_pb2.Sampling(temperature=0.0, ignore_eos=True),
            chain_root=b"whole" if prefill is None else b"split",
            prefill=None if prefill is None else prefill.ref,
        )
        self._link.submit(submit, answer)
        return answer

    async def _try(self, prompt: list[int], num_out: int, prefill: Running | None) -> Answer:
        answer = self.stream(prompt, num_out, prefill)
        await asyncio.wait_for(answer.over.wait(), 300)
        return answer

    async def end(self, *answers: Answer) -> None:
        """Cancels answers and waits for their ends."""
        for answer in answers:
            self._link.cancel(worker_pb2.Cancel(response_id=answer.response_id, attempt=1, choice=-1, reason="client"))
        for answer in answers:
            await asyncio.wait_for(answer.over.wait(), 300)

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


class Puller:
    """Production's pulls, into a pool of this process, from prompts that the prefill replica has cached."""

    def __init__(self, worker: Running, transport: str, num_pages: int, shape: KvShape) -> None:
        self.rate_seconds: list[float] = []
        self._worker, self._shape = worker, shape
        shard = Shard(0, shape.num_layers, 0, shape.num_kv_heads)
        self.images = PoolImages([PageImage.create(shape, shard, num_pages + 1)])
        config = SimpleNamespace(kv_transport=transport, kv_lease_s=30.0, tp=1)
        replica: Any = SimpleNamespace(
            config=config,
            replica_id="bench",
            epoch=transport,
            kv_context=worker.described.kv_context,
            note_transfer_rate=lambda rate: None,
        )
        self._done: dict[int, asyncio.Future[bool]] = {}
        sources: Any = SimpleNamespace(images=self.images)
        connect = lambda target: channels.connect(target, token=TOKEN, options=tuple(CHANNEL_OPTIONS.items()))  # noqa: E731
        self.pulls = Pulls(replica, sources, self._hear, connect)

    async def pull(self, prompt: list[int]) -> float:
        """Seconds until all pages of `prompt` are here and checked."""
        handle = next(_numbers)
        pages = tuple(range(1, -(-len(prompt) // PAGE_TOKENS) + 1))
        submit = worker_pb2.Submit(
            response_id=f"r{handle}",
            attempt=1,
            prompt_ids=array("I", prompt).tobytes(),
            chain_root=b"pull",
            prefill=self._worker.ref,
        )
        self._done[handle] = asyncio.get_running_loop().create_future()
        started_s = time.perf_counter()
        attempt: Any = SimpleNamespace(submit=submit, prefill_device_us=0)
        self.pulls.begin(PagesWanted(handle, submit.response_id, 1, 0, pages, len(prompt)), attempt)
        assert await asyncio.wait_for(self._done[handle], 600), "the pull failed"
        return time.perf_counter() - started_s

    def num_bytes(self, prompt: list[int]) -> int:
        return self.images.payload_bytes(self._shape.num_layers, -(-len(prompt) // PAGE_TOKENS))

    def _hear(self, command: Any) -> None:
        future = self._done.get(command.handle)
        if future is not None and not future.done():
            future.set_result(isinstance(command, Received))


def random_prompt(chance: random.Random, num_tokens: int, ids: range = range(17, 49_151)) -> list[int]:
    return [chance.choice(ids) for _ in range(num_tokens)]


def _send(port: int, num_bytes: int, num_times: int) -> None:
    data, most = memoryview(bytes(range(256)) * (num_bytes // 256 + 1)), 4 * 1024 * 1024
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for _ in range(num_times):
            assert sock.recv(1)
            at = 0
            while at < num_bytes:
                at += sock.send(data[at : min(num_bytes, at + most)])


def loopback_s(num_bytes: int, num_times: int = 5) -> float:
    """Best time to copy so many bytes from another process over TCP on loopback; both buffers were written before."""
    target = memoryview(bytearray(b"1") * num_bytes)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sender = get_context("spawn").Process(target=_send, args=(port, num_bytes, num_times))
        sender.start()
        connection, _ = server.accept()
        best_s = float("inf")
        with connection:
            for _ in range(num_times):
                started_s = time.perf_counter()
                connection.sendall(b"1")
                at = 0
                while at < num_bytes:
                    at += connection.recv_into(target[at:])
                best_s = min(best_s, time.perf_counter() - started_s)
        sender.join()
    return best_s


def memcpy_s(num_bytes: int, num_times: int = 9) -> float:
    """Best time to copy so many bytes within this process, source and target written before.

    Both are shared memory as the pools are, with as many pages: private memory may come in pages of megabytes.
    """
    source, target = (np.frombuffer(mmap.mmap(-1, num_bytes), np.uint64) for _ in range(2))
    source[:], target[:] = 1, 0
    best_s = float("inf")
    for _ in range(num_times):
        started_s = time.perf_counter()
        np.copyto(target, source)
        best_s = min(best_s, time.perf_counter() - started_s)
    return best_s
