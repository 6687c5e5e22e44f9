"""What a run says: attainment, goodput, latency, memory, scaling and cost, as JSON and as a table. Arithmetic only."""

from collections.abc import Sequence
from typing import Any

from headrace_sim.books import Column
from headrace_sim.simulation import Outcome

_PERCENTS = (50, 90, 95, 99)


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Everything; a list index of the timeline is one sample."""
    books, timeline, depot = outcome.books, outcome.timeline, outcome.depot
    duration_s = outcome.duration_s or 1.0
    good = sum(column.good_tokens for column in books.columns.values())
    useful = sum(column.output_tokens for column in books.columns.values())
    return {
        "duration_s": outcome.duration_s,
        "requests": {"arrived": books.num_arrived, **dict(sorted(books.endings.items()))},
        "reasons": dict(sorted(books.reasons.items())),
        "slo": [_column_json(model, name, column) for (model, name), column in sorted(books.columns.items())],
        "attainment": _attainment(list(books.columns.values())),
        "useful_tokens_per_s": useful / duration_s,
        "goodput_tokens_per_s": good / duration_s,
        "cached_prompt_share": books.num_cached_tokens / max(1, books.num_prompt_tokens),
        "queue_age_s": {"worst": max(timeline.queue_age_s, default=0.0)},
        "memory": {
            "held_share_mean": _mean(timeline.held_share),
            "held_share_max": max(timeline.held_share, default=0.0),
            "promised_share_max": max(timeline.promised_share, default=0.0),
        },
        "replicas": {
            "ready_max": max(timeline.ready, default=0),
            "starts": depot.num_starts,
            "stops": depot.num_stops,
            "killed_while_loading": depot.num_killed_loading,
            "not_placed": depot.num_unplaced,
        },
        "cost": cost(outcome),
        "hand_offs": {
            "begun": outcome.hand_offs.num_begun,
            "acknowledged": outcome.hand_offs.num_acknowledged,
            "aborted": outcome.hand_offs.num_aborted,
            "bytes": outcome.hand_offs.num_bytes,
        },
        "engine_steps": outcome.num_steps,
        "timeline": vars(timeline),
        "decisions": {
            name: [
                {"at_s": at_s, "desired": each.desired, "why": each.why, "detail": each.detail, "alarm": each.alarm}
                for at_s, each in scaled.decisions
            ]
            for name, scaled in outcome.scaled.items()
        },
    }


def cost(outcome: Outcome) -> dict[str, float]:
    """Device hours from the start of each replica to its end, and their price by useful tokens."""
    hours = price = 0.0
    replicas = [*outcome.depot.past, *(entry.replica for entry in outcome.depot.entries.values())]
    for replica in replicas:
        pool = outcome.fleet.pools[replica.pool]
        end_s = outcome.duration_s if replica.gone_s is None else replica.gone_s
        spent = (end_s - replica.started_s) / 3600 * pool.settings.num_devices
        hours += spent
        price += spent * pool.settings.price_per_gpu_hour
    useful = sum(column.output_tokens for column in outcome.books.columns.values())
    return {"gpu_hours": hours, "price": price, "price_per_million_useful_tokens": price / max(1, useful) * 1e6}


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that `percent` of them do not exceed; None of none. Negative values stand for "none"."""
    return _of_sorted(sorted(each for each in values if each >= 0), percent)


def _of_sorted(values: Sequence[float], percent: float) -> float | None:
    return values[min(len(values) - 1, int(len(values) * percent / 100))] if values else None


def _column_json(model: str, slo_class: str, column: Column) -> dict[str, Any]:
    return {
        "model": model,
        "class": slo_class,
        "ttft_budget_ms": column.ttft_ms,
        "inter_token_budget_ms": column.inter_token_ms,
        "requests": len(column.met),
        "attainment": _attainment([column]),
        "ttft_s": _percentiles(column.ttft_s),
        "inter_token_s": _percentiles(column.inter_token_s),
        "worst_gap_s": _percentiles(column.worst_gap_s),
        "queue_s": _percentiles(column.queue_s),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    there = sorted(each for each in values if each >= 0)
    found: dict[str, float | None] = {f"p{percent}": _of_sorted(there, percent) for percent in _PERCENTS}
    return {"mean": _mean(there) if there else None, **found}


def _attainment(columns: Sequence[Column]) -> float:
    """Share of all that arrived that met its budgets; a refusal has missed them."""
    ended = sum(len(column.met) for column in columns)
    return sum(sum(column.met) for column in columns) / ended if ended else 1.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def to_table(summary: dict[str, Any]) -> str:
    """The report for people, from its JSON."""
    requests = ", ".join(f"{count:,} {name}" for name, count in summary["requests"].items())
    lines = [f"{summary['duration_s']:,.0f} s simulated: {requests}", ""]
    heads = ("TTFT p50", 11), ("p95", 9), ("p99", 9), ("ITL p50", 10), ("p99", 9), ("queue p99", 11)
    lines.append(f"  {'model / class':<28}{'attained':>9}" + "".join(f"{name:>{width}}" for name, width in heads))
    for row in summary["slo"]:
        cells = [row["ttft_s"]["p50"], row["ttft_s"]["p95"], row["ttft_s"]["p99"], row["inter_token_s"]["p50"]]
        cells += [row["inter_token_s"]["p99"], row["queue_s"]["p99"]]
        shown = "".join(_ms(cell, width) for cell, (_, width) in zip(cells, heads, strict=True))
        lines.append(f"  {row['model'] + ' / ' + row['class']:<28}{row['attainment']:>9.2%}{shown}")
    memory, cost_, replicas = summary["memory"], summary["cost"], summary["replicas"]
    lines += [
        "",
        f"  useful tokens/s   {summary['useful_tokens_per_s']:>12,.0f}   "
        f"goodput {summary['goodput_tokens_per_s']:,.0f}",
        f"  cached prompt     {summary['cached_prompt_share']:>12.1%}",
        f"  oldest wait       {summary['queue_age_s']['worst']:>12.2f} s",
        f"  KV held           {memory['held_share_mean']:>12.1%}   at most {memory['held_share_max']:.1%}, "
        f"promised at most {memory['promised_share_max']:.1%}",
        f"  replicas          {replicas['ready_max']:>12}   {replicas['starts']} started, {replicas['stops']} stopped",
        f"  device hours      {cost_['gpu_hours']:>12.2f}   {cost_['price']:.2f} in all, "
        f"{cost_['price_per_million_useful_tokens']:.3f} per million useful tokens",
    ]
    if (hand_offs := summary["hand_offs"])["begun"]:
        moved = f"{hand_offs['acknowledged']:,} of {hand_offs['begun']:,} prompts came over"
        lines.append(f"  prefilled apart   {moved}, {hand_offs['bytes'] / 1e9:,.0f} GB of KV")
    if summary["reasons"]:
        reasons = ", ".join(f"{count:,} {name}" for name, count in summary["reasons"].items())
        lines.append(f"  not served        {reasons}")
    return "\n".join(lines)


def _ms(seconds: float | None, width: int) -> str:
    return f"{'-' if seconds is None else format(seconds * 1000, ',.0f') + ' ms':>{width}}"
