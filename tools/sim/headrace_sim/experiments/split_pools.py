"""Prefill and decode apart, with production's pairing rule, against replicas that do both; the GPUs are the same."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from headrace_sim.assembly import Options
from headrace_sim.books import Column
from headrace_sim.experiments.bench_fleet import POOL_8B, fleet_of, run
from headrace_sim.experiments.table import Report, ms, percent
from headrace_sim.report import percentile
from headrace_sim.simulation import Outcome
from headrace_worker.perf.drawing import Line
from headrace_workload.spec import Workload, read_workload

_FOR_S = 40.0
_WINDOW_S = 2.0
# A 400 Gb/s link at 80 %, and what a pull takes beside its bytes.
_LINK = {"kv_gb_per_s": 40, "kv_latency_ms": 2}
_LAYOUTS = (("shared, 4", {"p": 4}), ("split, 1 + 3", {"p": 1, "d": 3}), ("split, 2 + 2", {"p": 2, "d": 2}))
_HEAVY = {"prompt": {"p50": 4000, "p95": 12000, "max": 24000}, "output": {"p50": 120, "p95": 300}}
_BALANCED = {"prompt": {"p50": 500, "p95": 1500, "max": 4000}, "output": {"p50": 250, "p95": 600}}
# Name, lengths, milliseconds between tokens, rates.
_LOADS: tuple[tuple[str, dict[str, Any], int, tuple[float, ...]], ...] = (
    ("prefill-heavy", _HEAVY, 12, (8.0, 12.0, 16.0)),
    ("prefill-heavy", _HEAVY, 25, (8.0, 16.0, 24.0)),
    ("balanced", _BALANCED, 25, (40.0, 100.0)),
)
_DRAWN = (_HEAVY, 12, 12.0)
_HEAD = (
    *("load", "budget", "rps", "GPUs", "handed over", "gap p50", "worst gap p99", "TTFT p50", "TTFT p99", "attained"),
    "goodput tok/s",
)
_FINDING = (
    "With long prompts and 12 ms between tokens split pools pay: shared replicas must cut prompts so small that first "
    "tokens come late. With 25 ms, or short prompts, they do not: gaps are smoother, but first tokens come later (a "
    "prompt is computed, then moved), and goodput is no better. Split as 1 + 3 the one that prefills is full long "
    "before the others; under the most load either split serves less than shared replicas, which can put every GPU to "
    "either work. The pairing rule weighs delays against each other, not against budgets."
)


def report() -> Report:
    rows, gaps, firsts = [], [], []
    points = [(load, kind, budget_ms, rps) for load, kind, budget_ms, rates in _LOADS for rps in rates]
    for (load, kind, inter_token_ms, rps), (name, replicas) in product(points, _LAYOUTS):
        outcome, summary = _run(_workload(kind, rps), replicas, inter_token_ms)
        rows.append([load, f"{inter_token_ms} ms", f"{rps:g}", name, *_cells(outcome, summary)])
        if (kind, inter_token_ms, rps) == _DRAWN:
            column = outcome.books.columns["m", "chat"]
            gaps.append(_worst_by_time(name, column, column.worst_gap_s))
            firsts.append(_worst_by_time(name, column, column.ttft_s))
    drawn = f"by arrival, prefill-heavy, {_DRAWN[1]} ms, {_DRAWN[2]:g} rps"
    return Report(
        "Shared or split pools",
        "Four H100 with an 8 B model. *Shared*: each computes prompts and answers, in chunks cut to the budget between "
        "tokens. *Split*: the first of them only prefill for the others, where production's pairing rule finds that it "
        "pays; KV comes in at 40 GB/s, 2 ms late. Prefill-heavy: prompts p50 4,000 and p95 12,000, answers p50 120. "
        f"Balanced: 500, 1,500 and 250. TTFT budget 1.5 s; {_FOR_S:g} s of arrivals.",
        _HEAD,
        rows,
        _FINDING,
        plots=((f"Worst gap between tokens, ms, {drawn}", gaps), (f"Worst TTFT, ms, {drawn}", firsts)),
    )


def _workload(kind: dict[str, Any], rps: float) -> Workload:
    mix = [{"model": "m", "max_output": 1024, **kind}]
    return read_workload({"name": "split", "phases": [{"for_s": _FOR_S, "rps": rps}], "mix": mix})


def _run(workload: Workload, replicas: dict[str, int], inter_token_ms: int) -> tuple[Outcome, dict[str, Any]]:
    pools = {name: {**POOL_8B, "min": count} for name, count in replicas.items()}
    if len(pools) > 1:
        pools["p"]["role"], pools["d"]["role"] = "prefill", "decode"
    slo = {"ttft_ms": 1500, "inter_token_ms": inter_token_ms, "max_queue_ms": 4000, "default": True}
    sections = {name: {"host_ms": 0.5, "overlap": True, **_LINK} for name in pools}
    return run(fleet_of(pools, sections, {"chat": slo}), workload, Options(1, shares_prefixes=False))


def _cells(outcome: Outcome, summary: dict[str, Any]) -> list[str]:
    column: Column = outcome.books.columns["m", "chat"]
    share = outcome.hand_offs.num_acknowledged / max(1, outcome.books.num_accepted)
    gaps = [percentile(column.inter_token_s, 50), percentile(column.worst_gap_s, 99)]
    firsts = [percentile(column.ttft_s, place) for place in (50, 99)]
    goodput = f"{summary['goodput_tokens_per_s']:,.0f}"
    return [percent(share), *(ms(each) for each in (*gaps, *firsts)), percent(summary["attainment"]), goodput]


def _worst_by_time(name: str, column: Column, values: Sequence[float]) -> Line:
    """The worst of each window of arrivals, in milliseconds."""
    worst: dict[int, float] = {}
    for at_s, value in zip(column.arrived_s, values, strict=True):
        window = int(at_s / _WINDOW_S)
        worst[window] = max(worst.get(window, 0.0), value * 1000)
    windows = sorted(worst)
    return Line(name, [window * _WINDOW_S for window in windows], [worst[window] for window in windows])
