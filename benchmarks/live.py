"""The simulator against the real thing: one workload through a platform on this host's CPU and through the simulator.

The simulator is told what the worker published of its own steps and what a request alone costs outside of them, both
from a calibration with another workload; of the runs that it is compared with it knows only the arrivals. The load
generator and all services share the cores with the engine, in the calibration as in the runs.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gateway import DIRECT
from benchmarks.report import Figure
from headrace.v1 import worker_pb2, worker_pb2_grpc
from headrace_bench.summary import percentile
from headrace_cli.platform.state_dir import StateDir
from headrace_kit.channels import connect
from headrace_sim.assembly import Options
from headrace_sim.compiled import plain_environment
from headrace_sim.fleet import parse_fleet
from headrace_sim.job import Job
from headrace_sim.simulation import Simulation
from headrace_worker.perf.step_model import StepModel
from headrace_workload.arrival import Arrival
from headrace_workload.generate import generate
from headrace_workload.spec import read_workload

MODEL = "smollm2-135m-instruct"
SERVICES = Path(__file__).parent.parent / "services"
FLEET = SERVICES / "controlplane" / "headrace_controlplane" / "fleet" / "default.yaml"
NUM_RUNS = 3
SHARES = {"median": (50, 0.20), "p90": (90, 0.35)}
AGREEMENT = 0.10
QUANTITIES = ("TTFT", "time per output token", "E2E")


def _kind(weight: float, prompt: Any, output: Any, most: int) -> dict[str, Any]:
    return {"model": MODEL, "weight": weight, "prompt": prompt, "output": output, "max_output": most}


# One at a time, evenly: what is spent outside the engine. Then as many as the runs have, of other lengths.
ALONE = {"name": "alone", "cv": 0, "phases": [{"for_s": 20, "rps": 0.5}]}
ALONE["mix"] = [_kind(1, {"uniform": [32, 320]}, {"uniform": [16, 24]}, 24)]
LOADED = {"name": "loaded", "phases": [{"for_s": 25, "rps": 0.7}]}
LOADED["mix"] = [_kind(1, {"uniform": [32, 320]}, {"uniform": [16, 48]}, 48)]
CHECKED = {"name": "checked", "phases": [{"for_s": 80, "rps": 0.7}]}
CHECKED["mix"] = [
    _kind(3, {"p50": 60, "p95": 200, "max": 300}, {"p50": 24, "p95": 60, "max": 80}, 80),
    _kind(1, {"uniform": [200, 400]}, {"p50": 16, "p95": 40, "max": 60}, 60),
]


@dataclass(frozen=True)
class Costs:
    """What the simulator is told: seconds per step and per request, and pages."""

    model: StepModel
    host_s: float
    front_s: float
    num_pages: int


@dataclass(frozen=True)
class Seen:
    """One request by its client: seconds, and tokens by the server's count."""

    number: int
    num_prompt: int
    num_output: int
    ttft_s: float
    token_s: float
    whole_s: float


class Platform:
    """The default fleet of a newcomer, and what is asked of its worker."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._token = StateDir(state_dir).service_token.read_text().strip()
        status = json.loads(self._headrace("status", "--json"))
        self._url, self._key = f"http://{status['gateway']['http']}", status["api_key"]
        self._worker = next(row for row in status["services"] if row["name"].startswith("worker/"))

    def _headrace(self, *words: str) -> str:
        return _run("headrace_cli", *words, "--state-dir", str(self._state_dir))

    def load(self, spec: dict[str, Any], seed: int) -> list[Seen]:
        """A run of `headrace bench`, on an empty cache; every request must end as it should."""
        asyncio.run(self._ask(lambda stub: stub.FlushCache(worker_pb2.FlushCacheRequest(), timeout=10.0)))
        with tempfile.TemporaryDirectory() as folder:
            workload, found = Path(folder) / "workload.yaml", Path(folder) / "found.json"
            workload.write_text(yaml.safe_dump(spec))
            words = [self._url, "--api-key", self._key, "--ignore-eos", "--endpoint", "completions"]
            _run("headrace_bench", *words, "--workload", str(workload), "--seed", str(seed), "--json", str(found))
            return [_seen(each) for each in json.loads(found.read_text())["requests"]]

    def step_model(self) -> StepModel:
        """As the worker publishes it to routers."""
        published: StepModel = asyncio.run(self._ask(_published))
        return published

    def num_pages(self) -> int:
        ask = worker_pb2.DescribeRequest()
        return int(asyncio.run(self._ask(lambda stub: stub.Describe(ask, timeout=10.0))).num_pages)

    def between_steps(self) -> tuple[float, float]:
        """Seconds that its steps waited for the host so far, plans included, and steps."""
        with DIRECT.open(self._metrics(), timeout=10.0) as answer:
            lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines()]
        values = {name: float(value) for name, value in lines if name.startswith("worker_step_seconds_")}
        waited = sum(values[f'worker_step_seconds_sum{{part="{part}"}}'] for part in ("plan", "host_gap"))
        return waited, values['worker_step_seconds_count{part="plan"}']

    def _metrics(self) -> urllib.request.Request:
        url = f"http://{self._worker['http']}/metrics"
        return urllib.request.Request(url, headers={"authorization": f"Bearer {self._token}"})

    async def _ask(self, call: Any) -> Any:
        async with connect(self._worker["grpc"], token=self._token, peer="worker") as channel:
            return await call(worker_pb2_grpc.EngineStub(channel))


async def _published(stub: Any) -> StepModel:
    async for event in stub.Watch(worker_pb2.WatchRequest(), timeout=30.0):
        if event.HasField("step_model"):
            return StepModel.from_mapping(dict(event.step_model.coefficients), event.step_model.num_samples)
    raise AssertionError("the worker published no step times")


def _seen(row: dict[str, Any]) -> Seen:
    texts_s = row["texts_s"]
    assert not row["error"] and row["counted_by_server"] and texts_s, f"a request failed: {row['error']}"
    num_output = row["num_output"]
    token_s = (texts_s[-1] - texts_s[0]) / (num_output - 1) if num_output > 1 else 0.0
    times = texts_s[0] - row["sent_s"], token_s, row["ended_s"] - row["sent_s"]
    return Seen(row["number"], row["num_prompt"], num_output, *times)


@contextlib.contextmanager
def platform() -> Iterator[Platform]:
    with tempfile.TemporaryDirectory(prefix="hr") as folder:
        flags = ["--state-dir", folder]
        try:
            _run("headrace_cli", "up", *flags, "--detach", "--fleet", str(FLEET))
            yield Platform(Path(folder))
        finally:
            _run("headrace_cli", "down", *flags)


def _run(module: str, *words: str) -> str:
    """What a command prints. Its processes are those of production: none runs what is compiled for the simulator."""
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, env=plain_environment(), check=True, stdout=subprocess.PIPE, text=True).stdout


def calibrate(running: Platform) -> Costs:
    """From other requests than those that are compared."""
    alone = running.load(ALONE, 1)
    began = running.between_steps()
    running.load(LOADED, 2)
    ended = running.between_steps()
    model = running.step_model()
    host_s = (ended[0] - began[0]) / (ended[1] - began[1])
    chunk = yaml.safe_load(FLEET.read_text())["pools"]["cpu"]["max_chunk_tokens"]
    front_s = statistics.median(each.ttft_s - model.prefill_s(each.num_prompt, 0, chunk) for each in alone)
    return Costs(model, host_s, max(0.0, front_s), running.num_pages())


def simulate(costs: Costs, arrivals: list[Arrival]) -> list[Seen]:
    """What the simulator says of the same requests on the same fleet."""
    value = yaml.safe_load(FLEET.read_text())
    value["pools"]["cpu"]["num_pages"] = costs.num_pages
    names = ("step", "tokens", "decode_rows", "context_tokens", "attention_pairs", "tokens_beyond_knee")
    model = {**dict(zip(names, costs.model.coefficients, strict=True)), "knee_tokens": costs.model.knee_tokens}
    pool = {"host_ms": costs.host_s * 1e3, "front_ms": costs.front_s * 1e3, "step_model": model}
    value["simulation"] = {"pools": {"cpu": pool}}
    found: list[Seen] = []

    def note(job: Job) -> None:
        assert job.ttft_s is not None, "every request is served"
        times = job.ttft_s, job.inter_token_s, job.ended_s - job.arrival.at_s
        found.append(Seen(job.arrival.number, job.arrival.num_prompt, job.num_generated, *times))

    fleet = parse_fleet(yaml.safe_dump(value))
    Simulation(fleet, Options(fast_forward=False)).run(arrivals, note)
    return found


def spreads(requests: list[Seen]) -> dict[tuple[str, str], float]:
    """Median and p90 of every quantity."""
    columns = (
        [each.ttft_s for each in requests],
        [each.token_s for each in requests if each.num_output > 1],
        [each.whole_s for each in requests],
    )
    return {
        (name, share): percentile(sorted(column), place)
        for name, column in zip(QUANTITIES, columns, strict=True)
        for share, (place, _) in SHARES.items()
    }


def live_figures() -> list[Figure]:
    os.environ["NO_PROXY"] = "127.0.0.1,localhost"
    with platform() as running:
        costs = calibrate(running)
        runs = [running.load(CHECKED, 3) for _ in range(NUM_RUNS)]
    # The workload counts words; how many tokens they are is the tokenizer's word.
    sizes = {each.number: each for each in runs[0]}
    arrivals = [sized(each, sizes) for each in generate(read_workload(CHECKED), 3)]
    simulated = spreads(simulate(costs, arrivals))
    each_run = [spreads(run) for run in runs]
    print(f"step model {costs.model}, host {costs.host_s * 1e3:.2f} ms a step, front {costs.front_s * 1e3:.1f} ms")
    for key, value in simulated.items():
        seen = ", ".join(f"{run[key] * 1e3:.0f}" for run in each_run)
        print(f"{key[0]:>22} {key[1]:<7} {seen} ms measured, {value * 1e3:.0f} ms simulated")
    return compare(simulated, each_run)


def compare(simulated: dict[tuple[str, str], float], runs: list[dict[tuple[str, str], float]]) -> list[Figure]:
    """Against the median of the repeats; and how far these lie apart."""
    measured = {key: statistics.median(run[key] for run in runs) for key in simulated}
    name = "live CPU stack, same workload"
    figures = []
    for share, (_, target) in SHARES.items():
        errors = {key: abs(simulated[key] / measured[key] - 1) for key in simulated if key[1] == share}
        worst = max(errors, key=lambda key: errors[key])
        shown = "; ".join(f"{key[0]} {simulated[key] / measured[key] - 1:+.0%}" for key in errors)
        figures.append(Figure(f"{name}: worst error of {share}s", errors[worst], target, baseline=shown))
    apart = max(abs(run[key] / measured[key] - 1) for run in runs for key in measured if key[1] == "median")
    label = f"{name}: medians of {len(runs)} repeats, furthest from their middle"
    return [*figures, Figure(label, apart, AGREEMENT)]


def sized(arrival: Arrival, sizes: dict[int, Seen]) -> Arrival:
    """With the prompt's tokens as they were counted; none of these workloads shares a beginning."""
    seen, (segment,) = sizes[arrival.number], arrival.segments
    segments = (segment._replace(num_tokens=seen.num_prompt),)
    num_output = seen.num_output
    return arrival._replace(num_prompt=seen.num_prompt, num_output=num_output, max_output=num_output, segments=segments)
