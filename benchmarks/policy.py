"""`make bench-policy`: what one policy process costs, on a real Redis, over gRPC on loopback.

Admissions are measured open-loop at 300 a second, beside an
empty unary gRPC call and an empty EVALSHA at the same rate in the same run. `--settled N` takes fewer reservations for
a quick look; then that figure is not met.
"""

import argparse
import asyncio
import math
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks import report
from benchmarks.report import Figure
from headrace.v1 import policy_pb2 as pb
from headrace.v1 import policy_pb2_grpc, snapshot_pb2
from headrace_kit.channels import client_options
from headrace_policy import redis_link
from headrace_policy.screening.rule import Definition, compile_rule
from headrace_policy.screening.screener import Screener
from tests.integration.policy_process import TOKEN, PolicyProcess
from tests.unit.policy.fakes import KEY, limit, reservation, section, settlement
from tests.unit.policy.redis_process import RedisProcess

RATE, SECONDS = 300, 6
NUM_SETTLED, NUM_WARM, AT_ONCE = 100_000, 5_000, 24
NUM_WORDS, NUM_PATTERNS = 1000, 20
LIMITS = [("rpm", 1e9), ("tpm", 1e12), ("concurrency", 1e6), ("tokens_per_day", 1e15), ("spend_per_day", 1e12)]
DAY_MS = 86_400_000
NUM_TENANTS = 20_000
SENT: dict[str, Any] = {"timeout": 10.0, "metadata": (("authorization", f"Bearer {TOKEN}"),)}
Call = Callable[[int], Awaitable[Any]]


async def p99_ms(call: Call) -> float:
    """Of RATE calls a second for SECONDS, each started on time whatever the others do."""
    loop, spans = asyncio.get_running_loop(), list[float]()

    async def one(number: int) -> None:
        started = time.perf_counter()
        await call(number)
        spans.append(time.perf_counter() - started)

    begun, tasks = loop.time(), []
    for i in range(RATE * SECONDS):
        await asyncio.sleep(max(0.0, begun + i / RATE - loop.time()))
        tasks.append(asyncio.create_task(one(i)))
    await asyncio.gather(*tasks)
    return sorted(spans)[math.ceil(len(spans) * 0.99) - 1] * 1000


async def admission(stub: Any, channel: grpc.aio.Channel, server: RedisProcess) -> list[Figure]:
    identity = await stub.Authenticate(pb.AuthenticateRequest(credential=KEY), timeout=5)
    health: Any = health_pb2_grpc.HealthStub(channel)
    bare = redis_link.connect(server.url)
    store = server.client()
    sha = store.script_load("return 1")
    answers: list[pb.AdmitResponse] = []
    late: list[int] = []

    async def admit(number: int) -> None:
        request = pb.AdmitRequest(reservation=reservation(f"bench-{number}", identity))
        try:
            answers.append(await stub.Admit(request, timeout=5))
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE, error
            late.append(number)  # the decision was due before Redis had answered

    for i in range(200):
        await admit(-i - 1)
    empty = await p99_ms(lambda _: health.Check(health_pb2.HealthCheckRequest(), timeout=5))
    script = await p99_ms(lambda _: bare.evalsha(sha, 0))
    calls_before = num_scripts(store)
    started = time.perf_counter()
    whole = await p99_ms(admit)
    seconds, num_calls = time.perf_counter() - started, num_scripts(store) - calls_before
    idle_before = num_scripts(store)
    await asyncio.sleep(seconds / 2)
    num_calls -= 2 * (num_scripts(store) - idle_before)  # readiness is probed whether or not anybody calls
    assert all(answer.admitted for answer in answers)
    await bare.aclose()
    for answer in answers:
        await stub.Settle(settlement(answer.reservation, "completed", 3), timeout=5)
    floor = f"p99 of an empty unary call {empty:.3g} ms + of an EVALSHA {script:.3g} ms"
    return [
        Figure(f"Admit at {RATE}/s: p99 over its floor", whole / (empty + script), 3.0, baseline=floor),
        Figure(f"Admit at {RATE}/s: p99, ms", whole, baseline=floor),
        Figure("Admits answered 503 because Redis or this host took over 80 ms", len(late), 0),
        Figure("round trips to Redis per Admit", round(num_calls / (RATE * SECONDS), 2), 1.0),
    ]


def num_scripts(store: "redis.Redis") -> int:
    stats: Any = store.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))


async def settled(stub: Any, server: RedisProcess, pid: int, num_settled: int) -> list[Figure]:
    identity = await stub.Authenticate(pb.AuthenticateRequest(credential=KEY), **SENT)
    store, process = server.client(), psutil.Process(pid)
    numbers = iter(range(NUM_WARM + num_settled))
    marks: list[tuple[int, int]] = []
    late: list[int] = []

    async def client() -> None:
        for number in numbers:
            if number == NUM_WARM:
                marks.append((process.memory_info().rss, used_bytes(store)))
            held = reservation(f"resp_{random.randbytes(12).hex()}", identity)
            try:
                answer = await stub.Admit(pb.AdmitRequest(reservation=held), **SENT)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE, error
                late.append(number)
                await asyncio.sleep(0.5)
                continue
            await stub.Settle(settlement(answer.reservation, "completed", 3), **SENT)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    rate = (NUM_WARM + num_settled) / (time.perf_counter() - started)
    journal = "headrace:{acme}:journal"
    for _ in range(200):
        await asyncio.sleep(0.05)
        if not store.xlen(journal):
            break
    grown_mb = (process.memory_info().rss - marks[0][0]) / 1e6
    each = (used_bytes(store) - marks[0][1]) / (num_settled - len(late))
    lives: dict[bytes, Any] = {key: store.pttl(key) for key in store.scan_iter()}
    settled_lives = [life for key, life in lives.items() if b":done:" in key]
    assert settled_lives, "nothing is known of what was settled"
    few = (
        None
        if num_settled >= NUM_SETTLED
        else f"over {num_settled:,} reservations only: the figure is for {NUM_SETTLED:,}"
    )
    return [
        Figure(
            f"policy's memory over {NUM_SETTLED:,} settled reservations, MB", None if few else grown_mb, 5.0, reason=few
        ),
        Figure("Redis per settled reservation, bytes", None if few else each, 200.0, reason=few),
        Figure("longest life of what is kept of settled reservations, hours", max(settled_lives) / 3_600_000, 24.0),
        Figure("keys that live for ever", sum(life < 0 for life in lives.values()), 0),
        Figure("reservations taken and settled a second, one process", rate),
    ]


def used_bytes(store: "redis.Redis") -> int:
    memory: Any = store.info("memory")
    return int(memory["used_memory"])


def screening() -> list[Figure]:
    chance = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = tuple("".join(chance.choices(letters, k=chance.randint(4, 12))) for _ in range(NUM_WORDS))
    patterns = tuple(
        rf"\b{a}{b}-\d{{4,{6 + i}}}(?:/[a-z]{{2,8}})?\b"
        for i, (a, b) in enumerate(zip(letters, letters[5:], strict=False))
    )[:NUM_PATTERNS]
    rules = [
        compile_rule(Definition("w", "blocklist", values=words)),
        compile_rule(Definition("p", "regex", values=patterns, action="redact")),
    ]
    text = Path(__file__).parents[1].joinpath("README.md").read_text("utf-8")
    deltas = [text[i : i + 5] for i in range(0, min(len(text), 20_000), 5)]
    screener = Screener(rules)
    for delta in deltas[:200]:
        screener.feed(delta, False)
    screener, started = Screener(rules), time.process_time()
    for delta in deltas:
        screener.feed(delta, False)
    each = (time.process_time() - started) / len(deltas) * 1e6
    name = f"screening, CPU us per delta of 5 code points, {NUM_WORDS} words and {NUM_PATTERNS} patterns"
    return [Figure(name, each, 100.0)]


async def tenants(stub: Any, server: RedisProcess) -> list[Figure]:
    """What Redis keeps of a tenant with one running response and one that was settled."""
    identity, store = await stub.Authenticate(pb.AuthenticateRequest(credential=KEY), timeout=5), server.client()
    store.flushall()
    closed = await stub.Admit(pb.AdmitRequest(reservation=reservation("one", identity)), timeout=5)
    await stub.Admit(pb.AdmitRequest(reservation=reservation("two", identity)), timeout=5)
    await stub.Settle(settlement(closed.reservation, "completed", 3), timeout=5)
    sizes: list[Any] = [store.memory_usage(key) for key in store.scan_iter(match="*{acme}*")]
    total = sum(sizes)
    return [
        Figure(f"Redis per tenant with {len(LIMITS)} limits, one running and one settled, bytes", total),
        Figure(f"on paper: {NUM_TENANTS:,} such tenants, MB", total * NUM_TENANTS / 1e6),
    ]


async def over_grpc(num_settled: int) -> list[Figure]:
    server = RedisProcess().start()
    price = snapshot_pb2.ModelPrice(price=pb.Price(prompt_per_million=1.0, output_per_million=3.0))
    given = section(*(limit(name, capacity) for name, capacity in LIMITS), prices=[price])
    with tempfile.TemporaryDirectory() as folder:
        process = PolicyProcess(Path(folder) / "policy", given, server.url, log_level="warning").start()
        try:
            async with process.channel() as channel:
                stub: Any = policy_pb2_grpc.PolicyStub(channel)
                figures = await admission(stub, channel, server)
                figures += await tenants(stub, server)
            # What is measured next is memory: the client's own interceptors would only take time from policy.
            options = client_options(process.announced["grpc"])
            async with grpc.aio.insecure_channel(process.announced["grpc"], options) as channel:
                stub = policy_pb2_grpc.PolicyStub(channel)
                return figures + await settled(stub, server, process.announced["pid"], num_settled)
        finally:
            server.close()
            process.stop()


def main() -> None:
    """Runs, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settled", type=int, default=NUM_SETTLED)
    num_settled = parser.parse_args().settled
    report.write("policy", [*screening(), *asyncio.run(over_grpc(num_settled))])


if __name__ == "__main__":
    main()
