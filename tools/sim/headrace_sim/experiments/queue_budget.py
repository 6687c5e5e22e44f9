"""A TTFT budget of 700 ms: may a request wait for all of it, or only for what its own prefill leaves?"""

from headrace_sim.assembly import Options
from headrace_sim.experiments.bench_fleet import POOL_70B, fleet, run, steady
from headrace_sim.experiments.table import Report, ms, percent

_RATES = (6.0, 9.0, 12.0)
_FOR_S = 60.0


def report() -> Report:
    rows = []
    for rps in _RATES:
        for name, queue_first in (("first token first", False), ("queue first", True)):
            options = Options(1, shares_prefixes=False, queue_first=queue_first)
            outcome, summary = run(fleet({**POOL_70B, "min": 2}), steady(rps, _FOR_S), options)
            column = outcome.books.columns["m", "chat"]
            late = sum(each > 0.7 for each in column.ttft_s) / len(column.met)
            refused = outcome.books.endings["refused"] / len(column.met)
            cells = [percent(summary["attainment"]), percent(late), percent(refused)]
            goodput = f"{summary['goodput_tokens_per_s']:,.0f}"
            rows.append([f"{rps:g}", name, *cells, ms(summary["slo"][0]["ttft_s"]["p95"]), goodput])
    return Report(
        "Queue first or first token first",
        "Two replicas of a 70 B model (fp8, two H100 each) serve chat (prompts p50 640, p95 4,096) for 60 s; the TTFT "
        "budget is 700 ms. *First token first* is production's rule: the queue surrenders after budget less predicted "
        "prefill. *Queue first* lets a request wait the whole budget.",
        ("rps", "policy", "attained", "served late", "refused", "TTFT p95", "goodput tok/s"),
        rows,
        "Where the fleet is loaded, a queue that may take the whole budget serves requests that are late already when "
        "their prefill starts; the prefill spent on them makes others late. Where it is not, both are alike.",
    )
