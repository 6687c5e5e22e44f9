"""Whole prompts in one step against chunks cut to the inter-token budget."""

from headrace_sim.assembly import Options
from headrace_sim.experiments.bench_fleet import POOL_8B, fleet, run, steady
from headrace_sim.experiments.table import Report, ms, percent

_FOR_S = 60.0
_RPS = 12.0


def report() -> Report:
    rows = []
    loose = {"chat": {"ttft_ms": 2000, "max_queue_ms": 4000, "default": True}}
    tight = {"chat": {"ttft_ms": 2000, "inter_token_ms": 40, "max_queue_ms": 4000, "default": True}}
    cases = [("whole prompts", 16384, loose), ("chunks of 4,096", 4096, loose), ("chunks of 512", 512, loose)]
    for name, chunk, classes in [*cases, ("cut to 40 ms between tokens", 16384, tight)]:
        pool = {**POOL_8B, "max_chunk_tokens": chunk, "max_batch_tokens": chunk + 256}
        _, summary = run(fleet(pool, classes=classes), steady(_RPS, _FOR_S), Options(1, shares_prefixes=False))
        row = summary["slo"][0]
        gaps, firsts = row["worst_gap_s"], row["ttft_s"]
        cells = [ms(gaps["p50"]), ms(gaps["p99"]), ms(firsts["p50"]), ms(firsts["p99"])]
        rows.append([name, *cells, percent(row["attainment"])])
    return Report(
        "Whole or chunked prefill",
        f"One H100 with an 8 B model at {_RPS:g} requests/s of chat (prompts p50 640, p95 4,096, at most 16,384) "
        f"for 60 s. "
        "The last row is production's rule: the largest chunk whose predicted step keeps the class's inter-token "
        "budget.",
        ("prefill", "worst gap p50", "worst gap p99", "TTFT p50", "TTFT p99", "attained"),
        rows,
        "Running streams wait for the longest prompt that shares a step with them; chunks bound that wait, and what it "
        "costs is paid by the first tokens of long prompts.",
    )
