"""What never preempting costs: future reserve against the statistical class, cautious and bold, and optimism."""

from array import array

from headrace_sim.assembly import Options
from headrace_sim.experiments.bench_fleet import POOL_8B, fleet
from headrace_sim.experiments.table import Report, ms
from headrace_sim.simulation import Outcome, Simulation
from headrace_workload.generate import generate
from headrace_workload.spec import read_workload

_RATIOS = (1, 2, 4, 8)
_POLICIES = (
    ("future reserve", 0.0, False),
    ("statistical, 5 %", 0.05, False),
    ("statistical, 50 %", 0.5, False),
    ("optimistic", 0.0, True),
)
_OUTPUT = {"p50": 160, "p95": 480, "max": 900}
_MEAN_OUTPUT = 205
_FOR_S = 40.0


def report() -> Report:
    rows = []
    for ratio in _RATIOS:
        for name, overrun, optimistic in _POLICIES:
            outcome = _run(ratio, overrun, Options(1, shares_prefixes=False, optimistic=optimistic))
            column = next(iter(outcome.books.columns.values()))
            steps_s = sum(replica.busy_s for replica in outcome.depot.of("p"))
            rate = outcome.books.num_generated / outcome.duration_s
            held = sum(outcome.timeline.held_share) / len(outcome.timeline.held_share)
            cells = [f"{rate:,.0f}", f"{held:.0%}", ms(_mean(column.queue_s)), ms(_mean(column.worst_gap_s))]
            rows.append([f"{ratio}", name, *cells, f"{steps_s:.0f} s"])
    return Report(
        "Future reserve, statistical or optimistic admission",
        "One H100 with an 8 B model and KV for 40,000 tokens; 30 requests/s (prompt 512, output p50 160, p95 480) "
        f"arrive for {_FOR_S:g} s and wait as long as it takes. They declare so many times the mean output. The "
        "statistical class learns how long outputs are; with an overrun probability of 50 % it admits on their mean. "
        "*Optimistic* is what production does not do: admit while the prompt fits beside what is in use now, and "
        "preempt when memory runs out.",
        ("declared / actual", "admission", "output tok/s", "KV held", "mean wait", "mean worst gap", "device busy"),
        rows,
        "The price of never preempting grows with what clients declare too much: memory is promised that nobody "
        "writes, and requests wait for it. The statistical class takes most of it back for traffic that accepts a gap "
        "now and then; admitting on the mean gains little more. Optimism gains more still, and lets memory run out "
        "under everybody: streams stand still for longer while others are computed again.",
    )


def _run(ratio: int, overrun: float, options: Options) -> Outcome:
    declared = _MEAN_OUTPUT * ratio
    classes = {
        "batch": {"ttft_ms": 86_400_000, "max_queue_ms": 86_400_000, "default": True, "statistical": overrun > 0}
    }
    pool = {**POOL_8B, "page_tokens": 16, "num_pages": 2500}
    mix = {"model": "m", "prompt": 512, "output": _OUTPUT, "max_output": declared}
    workload = read_workload({"name": "batch", "phases": [{"for_s": _FOR_S, "rps": 30}], "mix": [mix]})
    found = fleet(pool, {"overrun": overrun}, classes=classes)
    return Simulation(found, options).run(generate(workload, 1))


def _mean(values: "array[float]") -> float:
    there = [each for each in values if each >= 0]
    return sum(there) / len(there) if there else 0.0
