"""`make bench-simulator`: how fast the simulator is, how near to measured runs, and what its scaler keeps in a burst.

Speeds are seconds simulated over seconds of CPU on one core, the drain after the last arrival counted as cost only, of
modules compiled by mypyc (`headrace simulate --compiled`; `--interpreted` leaves them as they are).
`--large` adds the run of 1,000 replicas (half an hour or more), `--day-share` runs the four hours of the burst at a
higher share. Accuracy: end-to-end H100 runs that nothing was fitted on, as closed loops through the whole simulator.
"""

import argparse
import csv
import gc
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.live import live_figures
from benchmarks.report import Figure, renewed, write
from benchmarks.simulator_pipeline import pipeline_figures
from headrace_sim.assembly import Options
from headrace_sim.closed_loop import ClosedLoop
from headrace_sim.compiled import is_compiled, run_compiled
from headrace_sim.experiments.scaling import CLAIRVOYANT, REACTIVE, RESERVE, SHARE, Found, compare, servegen_day_nine
from headrace_sim.fleet import SimFleet, parse_fleet
from headrace_sim.report import to_json
from headrace_sim.simulation import Outcome, Simulation
from headrace_workload.arrivals import Phase
from headrace_workload.generate import generate
from headrace_workload.lengths import Uniform
from headrace_workload.presets import PRESETS
from headrace_workload.spec import Workload, read_workload

HERE = Path(__file__).parent
FLEET = HERE.parent / "examples" / "simulation" / "chat-burst.yaml"
ROWS = HERE / "data" / "roofline" / "h100_end_to_end.csv"
SPEED_S = 30.0
RPS = 360.0
LARGE_REPLICAS, LARGE_RPS, LARGE_S = 1000, 10_000.0, 300.0
# Not fitted: what an HTTP server, a tokenizer and the host's part of a step are known to take.
FRONT_MS, HOST_MS = 5.0, 0.5
# Twice the users are twice the work: where TTFT grows by more, something else has run out. How much more is a matter of
# taste, so a steeper rule stands beside it.
KNEE, STEEP_KNEE = 2.0, 4.0


@dataclass(frozen=True)
class Timed:
    """A run, its CPU seconds and its JSON."""

    outcome: Outcome
    cpu_s: float
    summary: dict[str, Any]


def run_timed(fleet: SimFleet, workload: Workload, fast_forward: bool) -> Timed:
    started = time.process_time()
    options = Options(1, fast_forward, shares_prefixes=False)
    outcome = Simulation(fleet, options).run(generate(workload, 1))
    cpu_s = time.process_time() - started
    return Timed(outcome, cpu_s, to_json(outcome))


def chat(rps: float, for_s: float) -> Workload:
    """The mix of chat-burst at one rate."""
    return replace(read_workload(PRESETS["chat-burst"]), phases=(Phase(for_s, rps, rps),))


def speed_figures() -> list[Figure]:
    fleet = parse_fleet(FLEET.read_text())
    exact, fast = (run_timed(fleet, chat(RPS, SPEED_S), fast_forward) for fast_forward in (False, True))
    worst, name = max(_differences(exact.summary, fast.summary))
    shown = f"64 replicas at {RPS:g} rps for {SPEED_S:g} s"
    how = "compiled by mypyc" if is_compiled() else "interpreted"
    request_us = 1e6 * fast.cpu_s / (RPS * SPEED_S)
    cost = f"{how}; {request_us:.0f} us a request, most of it production's decisions: 50 x allows {1e6 / RPS / 50:.0f}"
    return [
        Figure(f"{shown}, every step planned: times real time", SPEED_S / exact.cpu_s, 5, "at least", how),
        Figure(f"{shown}, fast-forward: times real time", SPEED_S / fast.cpu_s, 50, "at least", cost),
        Figure("fast-forward against every step, same seed: worst difference", worst, 0.02, baseline=name),
    ]


def _differences(exact: dict[str, Any], fast: dict[str, Any]) -> list[tuple[float, str]]:
    """Relative differences of means and of what was served."""
    found = []
    for mine, theirs in zip(exact["slo"], fast["slo"], strict=True):
        for name in ("ttft_s", "inter_token_s"):
            difference = abs(theirs[name]["mean"] / mine[name]["mean"] - 1)
            found.append((difference, f"mean {name} of {mine['model']}"))
        found.append((abs(theirs["attainment"] - mine["attainment"]), f"attainment of {mine['model']}"))
    for name in ("useful_tokens_per_s", "goodput_tokens_per_s", "engine_steps"):
        found.append((abs(fast[name] / exact[name] - 1), name))
    return found


def large_figures(is_wanted: bool) -> list[Figure]:
    name = f"{LARGE_REPLICAS:,} replicas at {LARGE_RPS:,.0f} rps for {LARGE_S:g} s"
    if not is_wanted:
        reason = "takes half an hour: python -m benchmarks.simulator --large"
        return [
            Figure(f"{name}: CPU minutes", None, 30, reason=reason),
            Figure(f"{name}: peak memory, GiB", None, 4, reason=reason),
        ]
    value = yaml.safe_load(FLEET.read_text())
    value["pools"]["fast"]["min"], value["pools"]["deep"]["min"] = 600, 400
    timed = run_timed(parse_fleet(yaml.safe_dump(value)), chat(LARGE_RPS, LARGE_S), True)
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return [
        Figure(f"{name}: CPU minutes", timed.cpu_s / 60, 30),
        Figure(f"{name}: peak memory, GiB", peak_gib, 4),
    ]


@dataclass(frozen=True)
class Row:
    """One measured run and the same load simulated; TTFT is the mean over its requests."""

    tensor: int
    num_prompt: int
    num_output: int
    concurrency: int
    ttft_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        return self.simulated_s / self.ttft_s - 1


def accuracy_figures() -> list[Figure]:
    """Lengths are uniform in 0.8 to 1.0 of nominal, ten requests a user, all users at once: as that benchmark does.

    And as the engine that was measured does: it plans a step ahead, and admits on the memory that is in use, computing
    again what it must preempt.
    """
    with ROWS.open() as lines:
        rows = [_row({key: float(value) for key, value in run.items()}) for run in csv.DictReader(lines)]
    for row in rows:
        print(
            f"tp{row.tensor} {row.num_prompt:5d}/{row.num_output:<5d} {row.concurrency:3d} users: TTFT "
            f"{row.ttft_s * 1e3:7.0f} ms measured, {row.simulated_s * 1e3:7.0f} simulated ({row.error:+.0%})"
        )
    gated = [abs(row.error) for row in rows if row.concurrency <= 16]
    knees, steep = _num_same_knees(rows, KNEE), _num_same_knees(rows, STEEP_KNEE)
    return [
        Figure(f"TTFT at up to 16 users, {len(gated)} H100 runs: worst error", max(gated), 0.30),
        Figure(f"TTFT at up to 16 users, {len(gated)} H100 runs: median error", median(gated)),
        Figure(f"users at which KV runs out (TTFT over {KNEE:g} x, or none), as measured: of 9", knees, 9, "at least"),
        Figure(f"the same with TTFT over {STEEP_KNEE:g} x: of 9", steep),
    ]


def _row(run: dict[str, float]) -> Row:
    prompt, output, users = (int(run[name]) for name in ("isl", "osl", "concurrency"))
    pool = {
        "model": "m",
        "device": "cuda",
        "card": "h100-80gib",
        "precision": "bfloat16",
        "tp": int(run["tp_size"]),
        "max_context_tokens": 32768,
        "max_batch_tokens": 8448,
        "max_chunk_tokens": 8192,
        "max_waiting": 4096,
    }
    # 90 % of HBM for the engine, less its workspace of about 2 GiB.
    section = {"weights": "fp8", "host_ms": HOST_MS, "front_ms": FRONT_MS, "runtime_reserve_gib": 10, "overlap": True}
    value = {
        "models": {"m": {"source": "hf:org/name@main"}},
        "pools": {"p": pool},
        "classes": {"c": {"ttft_ms": 86_400_000, "max_queue_ms": 86_400_000, "default": True}},
        "simulation": {"models": {"m": {"shape": "llama-3.1-70b"}}, "pools": {"p": section}},
    }
    lengths = Uniform(int(0.8 * prompt), prompt), Uniform(int(0.8 * output), output)
    loop = ClosedLoop("m", *lengths, num_users=users, num_requests=10 * users)
    options = Options(shares_prefixes=False, optimistic=True)
    simulation = Simulation(parse_fleet(yaml.safe_dump(value)), options)
    column = simulation.run(loop.first(), loop.after).books.columns["m", "c"]
    simulated_s = sum(column.ttft_s) / len(column.ttft_s)
    return Row(int(run["tp_size"]), prompt, output, users, run["ttft_ms"] / 1e3, simulated_s)


def _kinds(rows: list[Row]) -> list[tuple[int, int, int]]:
    return sorted({(row.tensor, row.num_prompt, row.num_output) for row in rows})


def _num_same_knees(rows: list[Row], factor: float) -> int:
    """Kinds of run in which the simulated knee is the measured one."""
    return sum(_knee(rows, kind, "ttft_s", factor) == _knee(rows, kind, "simulated_s", factor) for kind in _kinds(rows))


def _knee(rows: list[Row], kind: tuple[int, int, int], field: str, factor: float) -> int | None:
    """The first concurrency at which doubling the users made TTFT more than `factor` times as long."""
    mine = [row for row in rows if (row.tensor, row.num_prompt, row.num_output) == kind]
    mine.sort(key=lambda row: row.concurrency)
    for before, after in pairwise(mine):
        if getattr(after, field) > factor * getattr(before, field):
            return after.concurrency
    return None


def burst_figures(share: float) -> list[Figure]:
    workload = servegen_day_nine(share, folder=HERE / "data" / "servegen")
    clairvoyant, reserve, reactive = compare(workload, (CLAIRVOYANT, RESERVE, REACTIVE))
    name = f"ServeGen day 9, 17:00-21:00 at 1/{1 / share:g} of its rate, 120 s to start"
    return [
        Figure(f"{name}: TTFT attainment, forecast + reserve", reserve.attainment, 0.99, "at least", _words(reserve)),
        Figure(
            f"{name}: GPU hours of clairvoyant, forecast + reserve",
            reserve.gpu_hours / clairvoyant.gpu_hours,
            1.25,
            baseline=f"clairvoyant {_words(clairvoyant)}",
        ),
        Figure(f"{name}: TTFT attainment, reactive", reactive.attainment, baseline=_words(reactive)),
        Figure(f"{name}: GPU hours of clairvoyant, reactive", reactive.gpu_hours / clairvoyant.gpu_hours),
    ]


def _words(found: Found) -> str:
    return f"{found.attainment:.2%} attained, {found.gpu_hours:.1f} GPU hours, {found.starts} starts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="also 1,000 replicas at 10,000 rps (half an hour)")
    parser.add_argument("--day-share", type=float, default=SHARE, help=f"share of the burst's rate ({SHARE})")
    names = ("speed", "accuracy", "pipeline", "live", "burst", "large")
    parser.add_argument("--only", choices=names, help="one part; nothing is written")
    parser.add_argument("--record", action="store_true", help="put that part's figures into the results of the others")
    parser.add_argument("--interpreted", action="store_true", help="without compiling what decides first")
    flags = parser.parse_args()
    if not (flags.interpreted or is_compiled()):
        sys.exit(run_compiled("benchmarks.simulator", sys.argv[1:]))
    gc.set_threshold(200_000, 50, 50)
    parts: dict[str, Callable[[], list[Figure]]] = {
        "speed": speed_figures,
        "accuracy": accuracy_figures,
        "pipeline": pipeline_figures,
        "live": live_figures,
        "burst": lambda: burst_figures(flags.day_share),
        "large": lambda: large_figures(flags.large or flags.only == "large"),
    }
    figures = [figure for name, part in parts.items() if flags.only in (None, name) for figure in part()]
    if flags.only is None or flags.record:
        figures = renewed("simulator", figures) if flags.only else figures
        write("simulator", figures, "CPU time of one core")
        return
    for figure in figures:
        print(f"{'ok' if figure.ok else 'NO'}  {figure.figure}: {figure.measured}  ({figure.baseline or ''})")


if __name__ == "__main__":
    main()
