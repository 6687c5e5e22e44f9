"""A router's decisions over gRPC, beside an empty call to it and a pipeline to its Redis.

`python -m benchmarks.routing_load REPLICAS REDIS` serves the router's own servicer, table and prefix index in a process
of its own; the table is told each second what watchers would tell it. The streams that bring this are not in it.
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import redis.asyncio

from headrace.v1 import fleet_pb2, response_pb2, routing_pb2, routing_pb2_grpc, snapshot_pb2, worker_pb2
from headrace_kit import channels
from headrace_kit.health import Health
from headrace_kit.listeners import GrpcListener
from headrace_router import redis_link
from headrace_router.decisions import DecisionLog
from headrace_router.demand import Demand
from headrace_router.dispatcher import Dispatcher
from headrace_router.fleet_rules import FleetRules
from headrace_router.in_flight import InFlight
from headrace_router.prefix_index import Change, record_of
from headrace_router.redis_index import RedisIndex, key_prefix
from headrace_router.redis_pages import RedisPages
from headrace_router.replicas import ReplicaTable
from headrace_router.servicer import RouterServicer

TOKEN = "routing-benchmark-token"
CTX = b"routing-benchmark"
PAGE_TOKENS = 16
COEFFICIENTS = {"step": 0.01, "tokens": 4.7e-5, "decode_rows": 5e-5, "attention_pairs": 1.3e-9, "tokens_beyond_512": 0}
NUM_PROMPTS = 20
SHARED_PAGES = 32
_HOLDERS = 4


def fill(table: ReplicaTable, rules: FleetRules, num_replicas: int) -> None:
    """So many ready replicas of one model."""
    pool = snapshot_pb2.Pool(name="p", model="m", hold_ms=1000, max_held=10, max_replicas=num_replicas)
    slo = snapshot_pb2.SloClass(name="standard", ttft_ms=700, max_queue_ms=5000, inter_token_ms=50)
    rules.apply(snapshot_pb2.RouterSection(pools=[pool], classes=[slo]))
    refs = [response_pb2.ReplicaRef(id=f"w-{i}", epoch="e1", endpoint=f"127.0.0.1:{i}") for i in range(num_replicas)]
    rows = [fleet_pb2.Replica(ref=ref, pool="p", model="m", revision="1", role="both") for ref in refs]
    table.apply(fleet_pb2.ReplicaSet(full=True, replicas=rows, registry_id="r", revision=1))
    for replica in table:
        replica.description = worker_pb2.Description(
            kv_context=CTX, page_tokens=PAGE_TOKENS, max_context_tokens=131_072
        )
        table.set_state(replica, "e1", worker_pb2.REPLICA_STATE_READY)
        table.set_coefficients(replica, worker_pb2.StepModel(coefficients=COEFFICIENTS))
        table.set_connected(replica, True)


async def serve(num_replicas: int, url: str) -> None:
    """Until killed; the first line says where."""
    rules, in_flight, demand = FleetRules(), InFlight(), Demand()
    table = ReplicaTable(rules, in_flight)
    fill(table, rules, num_replicas)
    client = redis_link.connect(url)
    # As it ships but for its patience: what is measured is a look-up, not how often a busy host makes one late.
    index = RedisIndex(client, look_up_s=1.0)
    dispatcher = Dispatcher(rules, table, demand, index, random.Random(1))
    servicer = RouterServicer(rules, table, in_flight, dispatcher, demand, DecisionLog(1000))
    listener = GrpcListener("127.0.0.1:0", Health(), token=TOKEN)
    routing_pb2_grpc.add_RouterServicer_to_server(servicer, listener)
    await listener.start()
    draws = random.Random(2)
    loads = [worker_pb2.Load(num_running=draws.randrange(8), num_total_pages=10_000) for _ in range(64)]
    print(listener.address, flush=True)
    while True:
        for replica in table:
            table.set_load(replica, draws.choice(loads))
        await asyncio.sleep(1)


def chain_of(prompt: int, num_pages: int) -> bytes:
    """Chain values: the first SHARED_PAGES are the same for every prompt."""
    values = (
        (0 if page < SHARED_PAGES else prompt + 1).to_bytes(8, "big") + page.to_bytes(8, "big")
        for page in range(num_pages)
    )
    return b"".join(values)


async def warm(url: str, num_replicas: int, num_pages: int, *, everywhere: bool) -> None:
    """Who holds what: the shared pages everybody, the rest of a prompt _HOLDERS of them, or everybody too."""
    client = redis_link.connect(url)
    await client.flushall()
    pages = RedisPages(client, "benchmark", expiry_s=3600)
    draws = random.Random(3)
    held: list[set[bytes]] = [set() for _ in range(num_replicas)]
    for prompt in range(NUM_PROMPTS):
        values = _split(chain_of(prompt, num_pages))
        owners = range(num_replicas) if everywhere else draws.sample(range(num_replicas), min(_HOLDERS, num_replicas))
        for i in range(num_replicas):
            held[i].update(values if i in owners else values[:SHARED_PAGES])
    for i in range(num_replicas):
        assert await pages.acquire(CTX, f"w-{i}"), "nobody else writes here"
        await pages.write(CTX, f"w-{i}", record_of(f"w-{i}", "e1"), Change(tuple(held[i])))
    await client.aclose()


def _split(packed: bytes) -> list[bytes]:
    return [packed[at : at + 16] for at in range(0, len(packed), 16)]


@dataclass
class Times:
    """Milliseconds of each kind of call, of one run."""

    route: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)
    pipeline: list[float] = field(default_factory=list)
    num_hits: int = 0

    @property
    def route_p99(self) -> float:
        return p99(self.route)

    @property
    def route_p50(self) -> float:
        return median(self.route)

    @property
    def floor_p99(self) -> float:
        return p99(self.empty) + p99(self.pipeline)

    @property
    def floor_p50(self) -> float:
        return median(self.empty) + median(self.pipeline)


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


@dataclass
class Driver:
    """One client of a router and of its Redis."""

    stub: Any
    store: Any
    num_pages: int
    times: Times = field(default_factory=Times)

    async def route(self, number: int) -> None:
        chain = chain_of(number % NUM_PROMPTS, self.num_pages)
        bounds = response_pb2.Bounds(num_prompt_tokens=self.num_pages * PAGE_TOKENS + 5, max_output_tokens=256, n=1)
        request = routing_pb2.RouteRequest(
            response_id=f"r-{number}", attempt=1, model="m", bounds=bounds, chain=chain, slo_class="standard"
        )
        started = time.perf_counter()
        answer = await self.stub.Route(request, timeout=10)
        self.times.route.append((time.perf_counter() - started) * 1000)
        self.times.num_hits += answer.num_predicted_hit_tokens > 0
        row = routing_pb2.AttemptOutcome(decision_id=answer.decision_id, outcome="completed")
        await self.stub.Report(routing_pb2.ReportRequest(outcomes=[row]), timeout=10)

    async def empty(self, number: int) -> None:
        started = time.perf_counter()
        await self.stub.Report(routing_pb2.ReportRequest(), timeout=10)
        self.times.empty.append((time.perf_counter() - started) * 1000)

    async def pipeline(self, number: int) -> None:
        """The same pages as a decision looks up, in one MGET."""
        prefix = key_prefix(CTX)
        keys = [prefix + value for value in _split(chain_of(number % NUM_PROMPTS, self.num_pages))]
        started = time.perf_counter()
        async with self.store.pipeline(transaction=False) as pipe:
            pipe.mget(keys or [prefix])
            await pipe.execute()
        self.times.pipeline.append((time.perf_counter() - started) * 1000)

    async def run(self, num_rounds: int, rate_per_s: int) -> Times:
        """A second of each kind in turn, so that all see the same neighbours; the first round is not counted."""
        for number in range(num_rounds + 1):
            if number == 1:
                self.times = Times()
            for call in (self.empty, self.pipeline, self.route):
                await _at_rate(call, rate_per_s)
        return self.times


async def _at_rate(call: Callable[[int], Awaitable[None]], rate_per_s: int) -> None:
    """One second of calls, each on its own, whether or not the last one has ended."""
    started, tasks = time.perf_counter(), []
    for number in range(rate_per_s):
        await asyncio.sleep(max(0.0, started + number / rate_per_s - time.perf_counter()))
        tasks.append(asyncio.ensure_future(call(number)))
    await asyncio.gather(*tasks)


@dataclass(frozen=True)
class Case:
    """What is measured: replicas, blocks of a prompt, decisions a second, seconds of them; who holds the prompts."""

    num_replicas: int
    num_blocks: int
    rate_per_s: int
    num_rounds: int
    everywhere: bool = False


@asynccontextmanager
async def router(num_replicas: int, url: str) -> AsyncIterator[str]:
    """Its address, for as long as it runs."""
    command = [sys.executable, "-m", "benchmarks.routing_load", str(num_replicas), url]
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[1]
    )
    assert child.stdout is not None, "its output is a pipe"
    try:
        yield (await asyncio.wait_for(child.stdout.readline(), 60)).decode().strip()
    finally:
        child.kill()
        await child.wait()


async def measure(url: str, case: Case) -> Times:
    """Against a fresh router; a page is one block."""
    await warm(url, case.num_replicas, case.num_blocks, everywhere=case.everywhere)
    store = redis.asyncio.Redis.from_url(url)
    async with router(case.num_replicas, url) as address, channels.connect(address, token=TOKEN) as channel:
        driver = Driver(routing_pb2_grpc.RouterStub(channel), store, case.num_blocks)
        times = await driver.run(case.num_rounds, case.rate_per_s)
    await store.aclose()
    return times


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
