"""A load plan as JSON, as a table and as a page. Formats; the arithmetic is in `load_plan`."""

from collections.abc import Sequence
from typing import Any

from headrace_worker.perf.drawing import Line, page, plot
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.load_plan import Option, Point, Wish, frontier
from headrace_worker.perf.plan import PlanReport


def load_json(report: PlanReport, wish: Wish, options: Sequence[Option]) -> dict[str, Any]:
    """The field `load` of the plan: the asked layout, the cheapest that keeps the SLO, every layout, the frontier."""
    chosen = [option for option in options if option.best is not None]
    asked = next((option for option in options if option.layout == report.layout), None)
    return {
        "prompt_tokens": wish.prompt_tokens,
        "output_tokens": wish.output_tokens,
        "ttft_budget_s": wish.ttft_s,
        "inter_token_budget_s": wish.inter_token_s,
        "rps": wish.rps,
        "price_per_gpu_hour": wish.price_per_gpu_hour,
        "layout": _option_json(asked, wish) if asked else None,
        "recommendation": _option_json(chosen[0], wish) if chosen else None,
        "layouts": [_option_json(option, wish) for option in options],
        "frontier": [{**_layout_json(layout), **_point_json(point, wish)} for layout, point in frontier(options)],
    }


def load_table(report: PlanReport, wish: Wish, options: Sequence[Option]) -> str:
    """The same for people."""
    budgets = [f"TTFT {wish.ttft_s * 1e3:.0f} ms"] if wish.ttft_s else []
    budgets += [f"inter-token {wish.inter_token_s * 1e3:.0f} ms"] if wish.inter_token_s else []
    budgets += [f"{wish.rps:g} requests/s"] if wish.rps else []
    asked = f"{wish.prompt_tokens:,} + {wish.output_tokens:,} tokens"
    lines = [f"  load {asked}" + (f", {', '.join(budgets)}" if budgets else ""), ""]
    heads = f"{'devices':>8}{'busy':>7}{'users':>7}{'TTFT':>10}{'ITL':>9}{'tok/s/GPU':>11}{'$/M tok':>9}"
    lines.append(f"  {'layout':<10}{heads}   binds")
    lines += [_row(option, wish) for option in options]
    best = options[0]
    lines.append("")
    if best.best is None:
        lines.append(f"  no layout on {report.request.card.name} keeps this")
    else:
        lines += [f"  {_explained(wish)}", "", f"  cheapest: {_cheapest(best, wish)}; {best.binding} binds"]
    mine = next((option for option in options if option.layout == report.layout), None)
    if mine is not None and mine.why_not:
        lines.append(f"  note: {_name(mine.layout)} {mine.why_not}")
    return "\n".join(lines)


def load_page(title: str, text: str, wish: Wish, options: Sequence[Option]) -> str:
    """The table with the frontier: throughput per device against speed for a user.

    Of the pipelines, those are drawn that are part of it.
    """
    best = frontier(options)
    edge_layouts = {layout for layout, _ in best}
    drawn = [each for each in options if each.fits and (each.layout.pipeline == 1 or each.layout in edge_layouts)]
    lines = [
        Line(
            _name(option.layout),
            [point.tokens_per_s_per_user for point in option.points],
            [point.tokens_per_s_per_gpu for point in option.points],
        )
        for option in drawn
    ]
    edge = Line(
        "frontier",
        [point.tokens_per_s_per_user for _, point in best],
        [point.tokens_per_s_per_gpu for _, point in best],
        dots=True,
        labels=[str(point.concurrency) for _, point in best],
    )
    times = [
        Line(_name(option.layout), [p.concurrency for p in option.points], [p.ttft_s * 1e3 for p in option.points])
        for option in drawn
    ]
    drawings = [
        plot(
            "Output tokens/s per device against tokens/s of one user (labels: users)", [*lines, edge], "tok/s/user", 360
        ),
        plot("Predicted TTFT, ms, by users at once", times, "users", 260),
    ]
    return page(title, text, drawings)


def _explained(wish: Wish) -> str:
    if wish.rps is None:
        return "each replica with the most users at once that keep the budgets; output tokens of one device; means"
    return "so many devices that they carry the rate; users at once of a replica, and means, at that rate"


def _cheapest(option: Option, wish: Wish) -> str:
    replicas = f"{option.num_replicas} x " if wish.rps else ""
    devices = "1 device" if option.num_devices == 1 else f"{option.num_devices:,} devices"
    cost = option.cost_per_hour(wish)
    price = "" if cost is None else f", {cost:,.2f} an hour"
    return f"{replicas}{_name(option.layout)}, {devices}{price}"


def _row(option: Option, wish: Wish) -> str:
    name = f"  {_name(option.layout):<10}"
    point = option.at_load
    if point is None:
        return f"{name}{option.layout.num_devices:>8}   {option.why_not}"
    cost, rate = option.cost_per_million(wish), option.tokens_per_s(wish) / option.num_devices
    shown = "-" if cost is None else f"{cost:,.2f}"
    return (
        f"{name}{option.num_devices:>8}{option.busy(wish):>7.0%}{point.concurrency:>7}{point.ttft_s * 1e3:>7.0f} ms"
        f"{point.tpot_s * 1e3:>6.1f} ms{rate:>11,.0f}{shown:>9}   {option.binding}"
    )


def _name(layout: Layout) -> str:
    return f"tp{layout.tensor}" + (f" pp{layout.pipeline}" if layout.pipeline > 1 else "")


def _layout_json(layout: Layout) -> dict[str, Any]:
    return {"tp": layout.tensor, "pp": layout.pipeline}


def _point_json(point: Point, wish: Wish) -> dict[str, Any]:
    return {
        "concurrency": point.concurrency,
        "ttft_s": point.ttft_s,
        "inter_token_s": point.tpot_s,
        "tokens_per_s": point.tokens_per_s,
        "tokens_per_s_per_gpu": point.tokens_per_s_per_gpu,
        "tokens_per_s_per_user": point.tokens_per_s_per_user,
        "cost_per_million_useful_tokens": point.cost_per_million(wish),
    }


def _option_json(option: Option, wish: Wish) -> dict[str, Any]:
    return {
        **_layout_json(option.layout),
        "fits": option.fits,
        "meets_slo": option.best is not None,
        "prefill_s": option.prefill_s,
        "binding": str(option.binding),
        "why_not": option.why_not,
        "replicas": option.num_replicas,
        "devices": option.num_devices,
        "busy": option.busy(wish) if option.best else None,
        "cost_per_hour": option.cost_per_hour(wish) if option.best else None,
        "cost_per_million_useful_tokens": option.cost_per_million(wish) if option.best else None,
        "at": _point_json(option.best, wish) if option.best else None,
        "at_load": _point_json(option.at_load, wish) if option.at_load else None,
    }
