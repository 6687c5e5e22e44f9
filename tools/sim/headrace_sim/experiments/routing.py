"""Routing by load alone against routing by load and what replicas have cached."""

from headrace_sim.assembly import Options
from headrace_sim.experiments.bench_fleet import POOL_8B, fleet, run
from headrace_sim.experiments.table import Report, ms, percent
from headrace_workload.presets import PRESETS
from headrace_workload.spec import read_workload

_RATES = (10.0, 20.0)
_FOR_S = 90.0


def report() -> Report:
    rows = []
    kind = {**PRESETS["conversation"]["mix"][0], "model": "m"}
    for rps in _RATES:
        workload = read_workload({"name": "talk", "phases": [{"for_s": _FOR_S, "rps": rps}], "mix": [kind]})
        for name, blind in (("prefix-aware", False), ("cache-blind", True)):
            pool = {**POOL_8B, "min": 8, "num_pages": 2500}
            _, summary = run(fleet(pool), workload, Options(1, cache_blind=blind))
            row = summary["slo"][0]
            cells = [percent(summary["cached_prompt_share"]), ms(row["ttft_s"]["p50"]), ms(row["ttft_s"]["p95"])]
            rows.append([f"{rps:g}", name, *cells, percent(summary["attainment"])])
    return Report(
        "Cache-blind or prefix-aware routing",
        f"Eight H100 with an 8 B model and 160,000 tokens of KV each; conversations of five turns behind one of "
        f"20 shared "
        f"prompts of 1,200 tokens, {_FOR_S:g} s.",
        ("rps", "routing", "prompt tokens cached", "TTFT p50", "TTFT p95", "attained"),
        rows,
        "Even a blind router lands some turns on a warm replica, and every replica soon holds the shared prompts; "
        "aware of "
        "the caches, turns go back to where their conversation is.",
    )
