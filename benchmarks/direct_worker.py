"""A worker called without gateway, policy or router: the time that the chain is measured against."""

import asyncio
import json
import time
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.v1 import prefix_chain, response_pb2, worker_pb2, worker_pb2_grpc
from headrace_gateway.upstreams.worker_link import WorkerLink
from headrace_kit.channels import client_options, connect


class _FirstTokens:
    """Resolves with the time of the first tokens."""

    def __init__(self) -> None:
        self.first: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def on_accepted(self, accepted: worker_pb2.Accepted) -> None: ...
    def on_refused(self, refused: worker_pb2.Refused) -> None: ...
    def on_final(self, final: worker_pb2.Final) -> None: ...
    def on_lost(self, reason: str) -> None: ...

    def on_tokens(self, choice: int, token_ids: list[int], logprobs: Any) -> None:
        if not self.first.done():
            self.first.set_result(time.perf_counter())


def direct_first_text_s(target: str, token: str, num: int, rate: float) -> list[float]:
    """Sorted seconds from Submit to the first token."""
    return asyncio.run(_direct(target, token, num, rate))


async def _direct(target: str, token: str, num: int, rate: float) -> list[float]:
    channel = connect(target, token=token)
    stub: Any = worker_pb2_grpc.EngineStub(channel)
    described = await stub.Describe(worker_pb2.DescribeRequest(), timeout=5.0)
    link = WorkerLink(channel, worker_pb2.Hello(gateway_id="bench"), lambda _link, _orphans: None)
    reading = asyncio.create_task(link.run(30.0))
    prompt = prefix_chain.pack_ids([256, *json.dumps(["h", "i"]).encode()])
    started, waiting = time.perf_counter(), []
    for number in range(num):
        await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
        waiting.append(asyncio.create_task(_one(link, described, prompt, number)))
    seconds = sorted(await asyncio.gather(*waiting))
    reading.cancel()
    await channel.close()
    return seconds


async def _one(link: WorkerLink, described: worker_pb2.Description, prompt: bytes, number: int) -> float:
    heard = _FirstTokens()
    sent = time.perf_counter()
    submit = worker_pb2.Submit(
        response_id=f"bench-{number}",
        attempt=1,
        replica_epoch=described.replica.epoch,
        prompt_ids=prompt,
        max_output_tokens=3,
        n=1,
        sampling=response_pb2.Sampling(),
        queue_deadline_ms=10_000,
        chain_root=b"bench",
        kv_context=described.kv_context,
    )
    link.submit(submit, heard)
    return await asyncio.wait_for(heard.first, 30.0) - sent


def unary_call_s(target: str, num: int, rate: float) -> list[float]:
    """Sorted seconds of one empty unary call."""

    async def calls() -> list[float]:
        async with grpc.aio.insecure_channel(target, client_options(target)) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            seconds = []
            for _ in range(num):
                started = time.perf_counter()
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=5.0)
                seconds.append(time.perf_counter() - started)
                await asyncio.sleep(max(0.0, 1 / rate - seconds[-1]))
            return sorted(seconds)

    return asyncio.run(calls())
