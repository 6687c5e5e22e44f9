"""The prefix index end to end: real workers' caches, a real Redis and two routers that agree about them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.v1 import prefix_chain, response_pb2, routing_pb2, worker_pb2, worker_pb2_grpc
from tests.integration.control_processes import EXTERNAL, Process, Routes, Site, eventually
from tests.unit.policy.redis_process import RedisProcess

NUM_TOKENS = 512
ROOT = prefix_chain.chain_root(b"tokenizer", b"tenant")
PACKED = prefix_chain.pack_ids([i % 250 for i in range(NUM_TOKENS)])
CHAIN = b"".join(prefix_chain.chain(ROOT, PACKED))


@dataclass
class Fleet:
    """Two workers and two routers on one Redis."""

    site: Site
    redis: RedisProcess
    workers: dict[str, Process]
    routers: list[Process]

    def routes(self, number: int) -> Routes:
        return self.site.routes(self.routers[number])

    def engine(self, replica_id: str) -> Any:
        return worker_pb2_grpc.EngineStub(self.site.channel(self.workers[replica_id].grpc))

    async def warm(self, replica_id: str, epoch: str) -> None:
        """Runs the prompt there to its end, so that its pages are cached."""
        attach = self.engine(replica_id).Attach()
        await attach.write(worker_pb2.Command(hello=worker_pb2.Hello(gateway_id="g", gateway_epoch="1")))
        submit = worker_pb2.Submit(
            handle=1, response_id="r1", attempt=1, replica_epoch=epoch, prompt_ids=PACKED, max_output_tokens=2, n=1
        )
        submit.queue_deadline_ms, submit.fair_key, submit.tenant_digest, submit.chain_root = 60_000, "k", b"t", ROOT
        await attach.write(worker_pb2.Command(submit=submit))
        while True:
            frame = await asyncio.wait_for(attach.read(), 30)
            assert not frame.refused
            if frame.finals:
                break
        attach.cancel()

    async def predicts(self, number: int, num_tokens: int, replica_id: str = "", limit_s: float = 30.0) -> Any:
        """Waits until this router predicts so many hit tokens, and for this replica."""

        async def as_expected() -> routing_pb2.RouteResponse | None:
            answer = await ask(self.routes(number))
            same = answer.num_predicted_hit_tokens == num_tokens and replica_id in (answer.replica.id, "")
            return answer if same else None

        return await eventually(as_expected, limit_s)

    async def hits_at(self, replica_id: str, number: int, num_tokens: int) -> routing_pb2.RouteResponse:
        """Waits until this router predicts so many hit tokens at this replica, were it the only one."""
        others = [name for name in self.workers if name != replica_id]

        async def as_expected() -> routing_pb2.RouteResponse | None:
            answer = await ask(self.routes(number), excluded=others)
            return answer if answer.num_predicted_hit_tokens == num_tokens else None

        answer: routing_pb2.RouteResponse = await eventually(as_expected)
        return answer


async def ask(routes: Routes, **facts: Any) -> routing_pb2.RouteResponse:
    bounds = response_pb2.Bounds(num_prompt_tokens=NUM_TOKENS, max_output_tokens=5, n=1)
    return await routes.pick(bounds=bounds, chain=CHAIN, **facts)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    site, redis = Site(tmp_path, fleet=EXTERNAL), RedisProcess().start()
    plane = await site.controlplane()
    workers = {name: await site.worker(plane.grpc, name) for name in ("w-1", "w-2")}
    flags = ("--controlplane", plane.grpc, "--redis", redis.url)
    routers = [await site.start("router", *flags, directory=name) for name in ("router-1", "router-2")]
    await site.admin(plane).ready("w-1", "w-2")
    yield Fleet(site, redis, workers, routers)
    await site.close()
    redis.close()


async def test_routers_agree_on_who_is_warm_whatever_is_lost(fleet: Fleet) -> None:
    """B87: the index follows the caches, and survives the loss of its writer and of its store."""
    await fleet.predicts(0, 0)
    await fleet.warm("w-1", (await epoch_of(fleet, "w-1")))
    # All but the last token: a full hit computes that one again (decision 15).
    warm = await fleet.predicts(0, NUM_TOKENS - 1, "w-1")
    assert f"holds {NUM_TOKENS} tokens" in warm.why
    await fleet.predicts(1, NUM_TOKENS - 1, "w-1")
    for number in (0, 1):  # asked of one replica at a time: a burst of picks would be spread over both
        await fleet.hits_at("w-1", number, NUM_TOKENS - 1)
        await fleet.hits_at("w-2", number, 0)

    with fleet.redis.client() as plain:
        plain.flushall()
    await fleet.predicts(0, NUM_TOKENS - 1, "w-1")

    # The router that writes w-2's pages dies; the other takes its lease when that ends, and follows what happens next.
    with fleet.redis.client() as plain:
        async with asyncio.timeout(30):
            while not (leases := list(plain.scan_iter(match="*:l:w-2"))):  # noqa: ASYNC110  Redis tells nobody
                await asyncio.sleep(0.05)
        owner = bytes(plain.get(leases[0]) or b"").decode()
    (writer,) = [n for n in (0, 1) if fleet.routers[n].addresses["instance"] == owner]
    fleet.routers[writer].kill()
    await fleet.predicts(1 - writer, NUM_TOKENS - 1, "w-1")
    await fleet.warm("w-2", (await epoch_of(fleet, "w-2")))
    await fleet.hits_at("w-2", 1 - writer, NUM_TOKENS - 1)

    flushed = await fleet.engine("w-1").FlushCache(worker_pb2.FlushCacheRequest(), timeout=30)

    async def emptied() -> bool:
        answer = await ask(fleet.routes(1 - writer), excluded=["w-2"])
        return answer.replica.epoch == flushed.epoch and not answer.num_predicted_hit_tokens

    await eventually(emptied)
    await fleet.predicts(1 - writer, NUM_TOKENS - 1, "w-2")


async def test_decisions_go_on_while_redis_stands_still_or_is_gone(fleet: Fleet) -> None:
    await fleet.warm("w-1", (await epoch_of(fleet, "w-1")))
    await fleet.predicts(0, NUM_TOKENS - 1, "w-1")
    os.kill(fleet.redis.pid, signal.SIGSTOP)
    try:
        picks = [await ask(fleet.routes(0), timeout_s=10) for _ in range(20)]
    finally:
        os.kill(fleet.redis.pid, signal.SIGCONT)
    assert picks[-1].num_predicted_hit_tokens == 0
    await fleet.predicts(0, NUM_TOKENS - 1, "w-1")
    fleet.redis.stop()
    assert all([(await ask(fleet.routes(0), timeout_s=10)).replica.id for _ in range(20)])
    fleet.redis.start()
    await fleet.predicts(0, NUM_TOKENS - 1, "w-1")

    # Who is stopped gives its leases back; nobody has to wait until they end.
    assert [router.terminate() for router in fleet.routers] == [0, 0]
    with fleet.redis.client() as plain:
        assert not list(plain.scan_iter(match="*:l:*"))


async def epoch_of(fleet: Fleet, replica_id: str) -> str:
    described = await fleet.engine(replica_id).Describe(worker_pb2.DescribeRequest(), timeout=30)
    return str(described.replica.epoch)
