"""`make bench-operations`: what tracing and metrics cost the gateway, and how many series a worker has.

Three gateways stand in one platform: as it is shipped, one that measures nothing, and one that keeps every trace. The
same load goes to them in turn, forwards and backwards, and what counts is the CPU time of each process per streamed
token: under a load that fills it, throughput is its inverse. The median over rounds is taken.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.gateway import DIRECT, Server, load, platform
from benchmarks.report import Figure

NUM_ROUNDS = 8
# (streams at once, tokens of each, most that may be lost): the second shows what a short answer pays.
WORKLOADS = ((256, 200, 0.05), (64, 16, None))
NUM_TRIES = 3
MAX_SERIES = 1000
MODULES = {"shipped": "headrace_gateway", "bare": "benchmarks.bare_gateway", "every trace": "headrace_gateway"}


@contextlib.contextmanager
def gateway(name: str, status: dict[str, Any], root: Path) -> Iterator[Server]:
    """One more gateway of a running platform."""
    folder = root / name.replace(" ", "-")
    folder.mkdir()
    targets = {row["name"]: row["grpc"] for row in status["services"]}
    words = [sys.executable, "-m", MODULES[name], "--service-token-file", str(root / "state/service-token")]
    words += ["--state-dir", str(folder), "--announce", str(folder / "announce.json"), "--log-level", "warning"]
    for service in ("controlplane", "policy", "router"):
        words += [f"--{service}", targets[service]]
    if name == "every trace":
        words += ["--trace-per-s", "1000000"]
    log = (folder / "log").open("w")
    with log, subprocess.Popen(words, stderr=log) as running:
        try:
            yield _ready(running, folder, status["api_key"])
        finally:
            running.terminate()


def _ready(running: "subprocess.Popen[bytes]", folder: Path, key: str, limit_s: float = 60.0) -> Server:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if running.poll() is not None:
            break
        # Ready is before the model's card has come: until then requests are refused.
        with contextlib.suppress(OSError, ValueError, AssertionError):
            told = json.loads((folder / "announce.json").read_text())
            DIRECT.open(f"http://{told['public_http']}/readyz", timeout=2.0).close()
            server = Server(told["public_http"], running.pid, key)
            load(server, "http", 16)
            return server
        time.sleep(0.2)
    raise TimeoutError(f"no gateway: {(folder / 'log').read_text()[-2000:]}")


def cpu_us_per_token(
    servers: dict[str, Server], num_streams: int, num_tokens: int, num_rounds: int
) -> dict[str, list[float]]:
    """By gateway, one value per round; the order turns around from round to round."""
    found: dict[str, list[float]] = {name: [] for name in servers}
    order = list(servers)
    for _ in range(num_rounds):
        for name in order:
            found[name].append(_one_run(servers[name], num_streams, num_tokens))
        order.reverse()
    return found


def _one_run(server: Server, num_streams: int, num_tokens: int) -> float:
    """Again if a stream was refused: on a busy host the quota store may not answer in time."""
    script = json.dumps([f"!repeat({num_tokens},word )"])
    for left in reversed(range(NUM_TRIES)):
        try:
            ran = load(server, "http", num_streams, text=script, max_tokens=num_tokens)
        except AssertionError:
            if not left:
                raise
            time.sleep(1.0)
        else:
            return ran.cpu_s / (num_streams * num_tokens) * 1e6
    raise AssertionError("the last try returns or raises")


def cost_figures(servers: dict[str, Server], num_rounds: int) -> list[Figure]:
    figures = []
    for num_streams, num_tokens, target in WORKLOADS:
        found = cpu_us_per_token(servers, num_streams, num_tokens, num_rounds)
        for name in ("shipped", "every trace"):
            pairs = zip(found[name], found["bare"], strict=True)
            lost = statistics.median(1 - bare / ours for ours, bare in pairs)
            ours, bare = statistics.median(found[name]), statistics.median(found["bare"])
            figures.append(
                Figure(
                    f"gateway throughput lost to tracing and metrics, {num_tokens} tokens a stream, {name}",
                    lost,
                    target if name == "shipped" else None,
                    baseline=f"{ours:.2f} us of CPU a token over {bare:.2f} us without; {num_streams} streams, "
                    f"{num_rounds} rounds in turn",
                )
            )
    return figures


def series_figure(status: dict[str, Any], token: str) -> Figure:
    """After the load above; a worker's page, line by line."""
    worker = next(row["http"] for row in status["services"] if row["name"].startswith("worker/"))
    request = urllib.request.Request(f"http://{worker}/metrics", headers={"authorization": f"Bearer {token}"})
    with DIRECT.open(request, timeout=10.0) as answer:
        lines = answer.read().decode().splitlines()
    num_series = sum(bool(line) and line[0] != "#" for line in lines)
    return Figure("series of one worker", num_series, MAX_SERIES, baseline="its /metrics after this run")


def main() -> None:
    os.environ["NO_PROXY"] = "127.0.0.1,localhost"
    num_rounds = int(os.environ.get("BENCH_ROUNDS", NUM_ROUNDS))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        root = Path(folder)
        status = running.enter_context(platform(root / "state"))
        servers = {name: running.enter_context(gateway(name, status, root)) for name in MODULES}
        figures = cost_figures(servers, num_rounds)
        figures.append(series_figure(status, (root / "state/service-token").read_text().strip()))
    report.write("operations", figures)


if __name__ == "__main__":
    main()
