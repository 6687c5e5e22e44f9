"""A batch that is filled once against one that is refilled at every step."""

from headrace_sim.assembly import Options
from headrace_sim.experiments.bench_fleet import POOL_8B, fleet, run_closed
from headrace_sim.experiments.table import Report, ms
from headrace_workload.lengths import read_lengths

_COUNT = 1200
_USERS = (16, 64, 256)
_LONG = {"slow": {"ttft_ms": 86_400_000, "max_queue_ms": 86_400_000, "default": True}}


def report() -> Report:
    lengths = read_lengths(512, "prompt"), read_lengths({"p50": 80, "p95": 400, "max": 1024}, "output")
    rows = []
    for users in _USERS:
        for name, static in (("continuous", False), ("static", True)):
            options = Options(1, shares_prefixes=False, static_batching=static)
            outcome = run_closed(fleet(POOL_8B, classes=_LONG), lengths, users, _COUNT, options)
            column = outcome.books.columns["m", "slow"]
            rate = outcome.books.num_generated / outcome.duration_s
            rows.append([str(users), name, f"{rate:,.0f}", ms(sum(column.ttft_s) / len(column.ttft_s))])
    return Report(
        "Static or continuous batching",
        f"One H100 with an 8 B model; {_COUNT:,} requests (512 tokens in, p50 80 and p95 400 out) from a closed "
        f"loop of "
        "users. *Static* admits a batch only when the last one has ended.",
        ("users", "batching", "output tok/s", "mean TTFT"),
        rows,
        "A static batch lasts as long as its longest output: the others' places stand empty, and who comes next waits "
        "for the end of the batch.",
    )
