"""`make bench-gateway`: what the gateway costs beside servers that do nothing, and beside other proxies.

CPU is what the server's process used between two readings, so that the load generator and the worker beside it do not
count. All ratios are taken in one run. The peers run in environments of their own: `make peers`.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import floors, report
from benchmarks.direct_worker import direct_first_text_s, unary_call_s
from benchmarks.report import Figure
from headrace_cli.client import Client

HERE = Path(__file__).parent
FLEET = HERE / "data/gateway/fleet.yaml"
PEERS = HERE / "peers"
NUM_STREAMS, NUM_TOKENS = 256, 200
NUM_IDLE = 2_000
NUM_TRIES = 4
"""A run in which a stream was refused says nothing: on a busy machine policy may not answer a burst in time."""
SCRIPT = json.dumps([f"!repeat({NUM_TOKENS},word )"])
PEER_KEY = "sk-headrace-bench-0123456789"
IDLE_SCRIPT = json.dumps(["a", "!stall(120)"])
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Server:
    """A server under load: where it answers and whose CPU counts."""

    target: str
    pid: int
    key: str = "none"
    model: str = "scripted"


@dataclass(frozen=True)
class Load:
    """One run of the load generator against one server."""

    cpu_s: float
    first_s: list[float]
    num_events: int
    num_bytes: int

    @property
    def cpu_us_per_event(self) -> float:
        return self.cpu_s / self.num_events * 1e6

    def first(self, share: float) -> float:
        return self.first_s[min(len(self.first_s) - 1, int(share * len(self.first_s)))]


def cpu_s(pid: int) -> float:
    """User and system time of a process and its children."""
    process = psutil.Process(pid)
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def load(server: Server, protocol: str, num: int = NUM_STREAMS, **spec: Any) -> Load:
    words = {"protocol": protocol, "target": server.target, "key": server.key, "model": server.model, "num": num}
    words |= {"text": SCRIPT, "max_tokens": NUM_TOKENS, **spec}
    command = [sys.executable, "-m", "benchmarks.stream_load", json.dumps(words)]
    for _ in range(NUM_TRIES):
        before = cpu_s(server.pid)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if not done.returncode:
            seen = json.loads(done.stdout)
            return Load(cpu_s(server.pid) - before, seen["first_s"], seen["num_events"], seen["num_bytes"])
    raise AssertionError(done.stderr[-2000:])


@contextlib.contextmanager
def platform(state_dir: Path) -> Iterator[dict[str, Any]]:
    """A scripted platform with room for thousands of streams."""
    headrace = [sys.executable, "-m", "headrace_cli"]
    flags = ["--state-dir", str(state_dir)]
    subprocess.run([*headrace, "up", *flags, "--detach", "--fleet", str(FLEET)], check=True, capture_output=True)
    try:
        status = subprocess.run([*headrace, "status", *flags, "--json"], check=True, capture_output=True, text=True)
        report_: dict[str, Any] = json.loads(status.stdout)
        yield report_
    finally:
        subprocess.run([*headrace, "down", *flags], check=True, capture_output=True)


@contextlib.contextmanager
def process(command: list[str], port: int, path: str = "/v1/models", **options: Any) -> Iterator[Server]:
    """A server in a process of its own, once it answers."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options) as running:
        try:
            _wait(port, path)
            yield Server(f"127.0.0.1:{port}", running.pid)
        finally:
            for child in psutil.Process(running.pid).children(recursive=True):
                child.kill()
            running.kill()


def _wait(port: int, path: str, limit_s: float = 90.0) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if path:
                DIRECT.open(f"http://127.0.0.1:{port}{path}", timeout=2.0).close()
            else:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        time.sleep(0.2)
    raise TimeoutError(f"nothing answers on port {port}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def record(gateway: Server, grpc_target: str, folder: Path) -> tuple[Path, Path]:
    """The bytes and events of one answer, for the floors: at a pace at which every token makes an event of its own."""
    script = json.dumps(["!rate(500)", f"!repeat({NUM_TOKENS},word )"])
    body = {"model": "scripted", "stream": True, "max_tokens": NUM_TOKENS}
    body["messages"] = [{"role": "user", "content": script}]
    headers = {"authorization": f"Bearer {gateway.key}", "content-type": "application/json"}
    url = f"http://{gateway.target}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    sse, events = folder / "answer.sse", folder / "answer.events"
    sse.write_bytes(DIRECT.open(request, timeout=30.0).read())
    with Client(grpc_target, api_key=gateway.key) as client:
        stream = client.generate("scripted", [{"role": "user", "content": script}], max_output_tokens=NUM_TOKENS)
        events.write_bytes(floors.pack_events(list(stream)))
    return sse, events


def cpu_figures(gateway: Server, grpc_target: str, folder: Path) -> list[Figure]:
    """CPU per streamed event against a server that writes the same from memory."""
    sse, events = record(gateway, grpc_target, folder)
    grpc_gateway = Server(grpc_target, gateway.pid, gateway.key)
    for protocol, server in (("http", gateway), ("grpc", grpc_gateway)):
        load(server, protocol)  # warm; the traces that may be kept at once are spent too
    ours = load(gateway, "http")
    over_grpc = load(grpc_gateway, "grpc")
    short = load(gateway, "http", text=json.dumps(["a"]), max_tokens=1)
    floor_command = [sys.executable, "-m", "benchmarks.floors"]
    with process([*floor_command, "sse", str(port := free_port()), str(sse)], port) as floor:
        bare = load(floor, "http")
    with process([*floor_command, "grpc", str(port := free_port()), str(events)], port, "") as floor:
        bare_grpc = load(floor, "grpc")
    tokens = NUM_STREAMS * NUM_TOKENS
    return [
        Figure(
            "HTTP: gateway CPU per streamed token, 256 streams at full rate, over a bare ASGI app",
            ours.cpu_s / tokens / (bare.cpu_s / tokens),
            5.0,
            baseline=f"{ours.cpu_s / tokens * 1e6:.1f} us a token over {bare.cpu_s / tokens * 1e6:.1f} us "
            f"({ours.num_events} events over {bare.num_events})",
        ),
        Figure(
            "gRPC: gateway CPU per streamed token, 256 streams at full rate, over a bare grpc.aio stream",
            over_grpc.cpu_s / bare_grpc.cpu_s,
            1.4,
            baseline=f"{over_grpc.cpu_s / tokens * 1e6:.1f} us a token over {bare_grpc.cpu_s / tokens * 1e6:.1f} us "
            f"({over_grpc.num_events} events over {bare_grpc.num_events})",
        ),
        Figure(
            "gateway CPU per response of one token, us: what every stream costs beside its tokens",
            short.cpu_s / NUM_STREAMS * 1e6,
            baseline=f"{short.cpu_s / tokens * 1e6:.1f} us of each token above",
        ),
    ]


def memory_figure(gateway: Server) -> Figure:
    """Resident memory per stream that is open and silent."""
    process_ = psutil.Process(gateway.pid)
    before = process_.memory_info().rss
    spec = {"protocol": "http", "target": gateway.target, "key": gateway.key, "model": "scripted", "num": NUM_IDLE}
    words = json.dumps(spec | {"text": IDLE_SCRIPT, "max_tokens": 4, "rate": 400})
    with subprocess.Popen([sys.executable, "-m", "benchmarks.stream_load", words], stdout=subprocess.DEVNULL) as idle:
        time.sleep(NUM_IDLE / 400 + 8.0)
        num_open = len([one for one in process_.net_connections("tcp") if one.status == "ESTABLISHED"])
        per_stream = (process_.memory_info().rss - before) / NUM_IDLE
        idle.kill()
    note = f"{num_open} connections open"
    reason = note if num_open >= NUM_IDLE else f"only {note}"
    measured = per_stream / 1000 if num_open >= NUM_IDLE else None
    return Figure("memory per idle stream, kB, 2,000 streams", measured, 50.0, reason=reason)


def worker_of(status: dict[str, Any]) -> str:
    return str(next(row["grpc"] for row in status["services"] if row["name"].startswith("worker/")))


def latency_figures(gateway: Server, status: dict[str, Any], token: str) -> list[Figure]:
    """Time to the first text: the whole chain less the worker alone, in empty unary calls."""
    grpc_target, worker = status["gateway"]["grpc"], worker_of(status)
    chain = load(Server(grpc_target, gateway.pid, gateway.key), "grpc", 500, rate=50, text="hi", max_tokens=3)
    alone = direct_first_text_s(worker, token, 500, 50.0)
    unary = unary_call_s(grpc_target, 500, 50.0)
    added = [chain.first(share) - alone[int(share * len(alone))] for share in (0.5, 0.99)]
    base = f"one empty unary call: p50 {unary[250] * 1e3:.2f} ms"
    return [
        Figure(
            "added time to first text at 50/s, p50, in empty unary calls", added[0] / unary[250], 6.0, baseline=base
        ),
        Figure(
            "added time to first text at 50/s, p99, in empty unary calls", added[1] / unary[250], 20.0, baseline=base
        ),
    ]


def peer_figures(gateway: Server, sse: Path, alone_s: float) -> list[Figure]:
    """Chunks per CPU-second and added time beside other proxies over one backend that writes from memory.

    What a server adds is its time to the first text less that of its own backend called directly: the one that writes
    from memory for the proxies, a worker for us (`alone_s`).
    """
    ours = load(gateway, "http", 64)
    idle = load(gateway, "http", 40, rate=10)
    figures = []
    floor = [sys.executable, "-m", "benchmarks.floors", "sse", str(backend_port := free_port()), str(sse)]
    with process(floor, backend_port) as backend:
        bare = load(backend, "http", 40, rate=10)
        for name, target, added_target in (("litellm", 30.0, 0.25), ("sglang-router", 0.15, None)):
            command = peer_command(name, backend.target, port := free_port())
            if command is None:
                reason = f"{name} is not installed: make peers"
                figures.append(Figure(f"chunks per CPU-second, over {name}", None, target, "at least", reason=reason))
                continue
            try:
                theirs = peer_loads(name, command, port)
            except (TimeoutError, AssertionError) as error:
                reason = f"{name} did not serve: {str(error)[:200]}"
                figures.append(Figure(f"chunks per CPU-second, over {name}", None, target, "at least", reason=reason))
                continue
            added = (idle.first(0.5) - alone_s, theirs[1].first(0.5) - bare.first(0.5))
            figures += compare(name, (ours, theirs[0]), added, (target, added_target))
    return figures


def peer_loads(name: str, command: list[str], port: int) -> tuple[Load, Load]:
    """Under load, and nearly idle."""
    path = "/health/liveliness" if name == "litellm" else "/v1/models"
    with process(command, port, path, env={**os.environ, "LITELLM_MASTER_KEY": PEER_KEY}) as peer:
        served = Server(peer.target, peer.pid, PEER_KEY)
        load(served, "http", 4)
        return load(served, "http", 64), load(served, "http", 40, rate=10)


def compare(
    name: str, loads: tuple[Load, Load], added_s: tuple[float, float], targets: tuple[float, float | None]
) -> list[Figure]:
    """Ours and theirs."""
    ours, theirs = loads
    ratio = theirs.cpu_us_per_event / ours.cpu_us_per_event
    note = f"{ours.cpu_us_per_event:.1f} us a chunk, {name} {theirs.cpu_us_per_event:.1f} us"
    return [
        Figure(f"chunks per CPU-second, over {name}", ratio, targets[0], "at least", baseline=note),
        Figure(
            f"added time to first text when idle, over {name}",
            added_s[0] / added_s[1],
            targets[1],
            baseline=f"{added_s[0] * 1e3:.2f} ms over {added_s[1] * 1e3:.2f} ms",
        ),
    ]


def peer_command(name: str, backend: str, port: int) -> list[str] | None:
    """How a peer is started, or None where `make peers` was not run."""
    python = PEERS / name / "bin/python"
    if not python.exists():
        return None
    if name == "litellm":
        config = Path(tempfile.mkdtemp()) / "config.yaml"
        parameters = {"model": "openai/scripted", "api_base": f"http://{backend}/v1", "api_key": "none"}
        config.write_text(json.dumps({"model_list": [{"model_name": "scripted", "litellm_params": parameters}]}))
        return [str(python.with_name("litellm")), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    router = [str(python), "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    return [*router, "--worker-urls", f"http://{backend}"]


def main() -> None:
    os.environ["NO_PROXY"] = "127.0.0.1,localhost"
    with tempfile.TemporaryDirectory() as folder, platform(Path(folder) / "state") as status:
        row = next(one for one in status["services"] if one["name"] == "gateway")
        gateway = Server(status["gateway"]["http"], row["pid"], status["api_key"])
        token = (Path(folder) / "state/service-token").read_text().strip()
        load(gateway, "http", 32)  # warm
        figures = cpu_figures(gateway, status["gateway"]["grpc"], Path(folder))
        figures += latency_figures(gateway, status, token)
        alone_s = direct_first_text_s(worker_of(status), token, 40, 10.0)[20]
        figures += peer_figures(gateway, Path(folder) / "answer.sse", alone_s)
        figures.append(memory_figure(gateway))
    report.write("gateway", figures)


if __name__ == "__main__":
    main()
