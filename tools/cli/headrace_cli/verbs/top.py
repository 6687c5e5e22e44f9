"""`headrace top`: the fleet as it works now, drawn anew every other second."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.v1 import fleet_pb2, policy_pb2, response_pb2
from headrace_cli.overview import Look, Overview, TenantLine, overview, pairs, read
from headrace_cli.platform.admin import Admin, ControlPlaneAway
from headrace_cli.platform.state_dir import StateDir
from headrace_kit.errors import HeadraceError

HELP = "live view of fleet, queues, memory, objectives and tenants"
_TIMEOUT_S = 10.0
_TENANTS_S, _MOST_TENANTS = 60.0, 10
_GAP = 2
Rows = tuple[Sequence[str], Sequence[Sequence[str | Text]]]
"""Heads and rows, most used columns first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds between two looks (default 2)")
    parser.add_argument("--once", action="store_true", help="one view, and leave")
    parser.add_argument("--json", action="store_true", help="one view as JSON, and leave")


def run(options: argparse.Namespace) -> int:
    if not 0.2 <= options.every <= 3600:
        raise SystemExit("headrace: --every: expected 0.2 to 3600 seconds")
    asyncio.run(_watch(StateDir.resolve(options.state_dir), options))
    return 0


async def _watch(state: StateDir, options: argparse.Namespace) -> None:
    async with Admin(state) as admin:
        before = await _look(admin)
        await asyncio.sleep(options.every)
        if options.once or options.json or not sys.stdout.isatty():
            seen, tenants = overview(pairs(await _look(admin), before)), await _tenants(admin)
            if options.json:
                print(json.dumps({**asdict(seen), "tenants": [asdict(line) for line in tenants]}, indent=2))
            else:
                console = Console(width=None if sys.stdout.isatty() else 140)
                console.print(_view(seen, tenants, console.width))
            return
        with Live(screen=True, auto_refresh=False) as live:
            while True:
                try:
                    now = await _look(admin)
                    live.update(
                        _view(overview(pairs(now, before)), await _tenants(admin), live.console.width), refresh=True
                    )
                    before = now
                except ControlPlaneAway as error:  # it is back in seconds, and this goes on
                    live.update(Text(str(error), style="red"), refresh=True)
                await asyncio.sleep(options.every)


async def _look(admin: Admin) -> list[Look]:
    told = admin.stream(admin.stub.ListMetrics, fleet_pb2.ListMetricsRequest(), _TIMEOUT_S)
    return [_read(one) async for one in told]


def _read(told: fleet_pb2.ProcessMetrics) -> Look:
    if told.silent:
        return Look(told.service, told.instance, time.monotonic(), {}, is_silent=True)
    return read(told.service, told.instance, time.monotonic(), told.text)


async def _tenants(admin: Admin) -> list[TenantLine]:
    """Those with most output within the last minute; policy away is no tenant at all."""
    query = policy_pb2.UsageQuery(from_ms=round((time.time() - _TENANTS_S) * 1000))
    found: dict[str, TenantLine] = {}
    try:
        async for row in admin.stream(admin.stub.QueryUsage, query, _TIMEOUT_S):
            if not row.settlement.attempt_of:
                _add(found, row)
    except HeadraceError:
        return []
    return sorted(found.values(), key=lambda line: (-line.num_output_tokens, line.name))[:_MOST_TENANTS]


def _add(found: dict[str, TenantLine], row: policy_pb2.UsageRow) -> None:
    settled = row.settlement
    name = settled.reservation.identity.tenant
    line = found.setdefault(name, TenantLine(name))
    line.num_responses += settled.created and not row.correction
    line.num_refused += not settled.created
    line.num_failed += settled.kind == response_pb2.TERMINAL_KIND_FAILED
    line.num_output_tokens += settled.num_output_tokens
    line.cost += row.cost


def _view(seen: Overview, tenants: Iterable[TenantLine], width: int) -> Group:
    books = (
        Text("books balance", style="green") if not seen.num_unbalanced else Text("BOOKS DO NOT BALANCE", style="red")
    )
    head = Text.assemble(
        ("headrace", "bold"),
        f"   fleet file {seen.version:g}   {seen.num_ready:g} of {seen.num_replicas:g} replicas ready   "
        f"{seen.num_open:g} open   {seen.responses_per_s:.1f} responses/s   {seen.tokens_per_s:.0f} tokens/s   "
        f"{seen.refusals_per_s:.1f} refused/s   ",
        books,
    )
    silent = (
        [Text(f"no answer from {', '.join(seen.silent)}: not in these figures", style="red")] if seen.silent else []
    )
    tables = (_engines(seen), _classes(seen), _tenant_lines(tenants))
    return Group(head, *silent, *(part for table in tables for part in (Text(), _fitted(*table, width))))


def _engines(seen: Overview) -> Rows:
    heads = ("replica", "running", "waiting", "oldest", "tokens/s", "step", "held", "promised", "cached", "memory")
    return heads, [
        (
            one.name,
            f"{one.num_running:g}",
            f"{one.num_waiting:g}",
            f"{one.oldest_s:.1f} s" if one.num_waiting else "",
            f"{one.tokens_per_s:.0f}",
            f"{one.step_s * 1000:.1f} ms" if one.step_s is not None else "",
            f"{one.held:.0%}",
            f"{one.promised:.0%}",
            f"{one.cached:.0%}",
            _bar(one.held, one.cached),
        )
        for one in seen.engines
    ]


def _classes(seen: Overview) -> Rows:
    heads = ("class", "TTFT kept", "burn 5 min", "between tokens kept", "goodput/s", "burn 1 h")
    return heads, [
        (
            one.name,
            _share(one.ttft),
            Text(f"{one.burn:.1f}", style="red" if one.burn > 1 else ""),
            _share(one.inter_token),
            f"{one.goodput_per_s:.2f}",
            f"{one.burn_hour:.1f}",
        )
        for one in seen.classes
    ]


def _tenant_lines(tenants: Iterable[TenantLine]) -> Rows:
    heads = ("tenant (1 min)", "responses", "output tokens", "failed", "refused", "cost")
    return heads, [
        (
            one.name,
            *map(str, (one.num_responses, one.num_output_tokens, one.num_failed, one.num_refused)),
            f"{one.cost:.4f}",
        )
        for one in tenants
    ]


def _fitted(heads: Sequence[str], rows: Sequence[Sequence[str | Text]], width: int) -> Table:
    """As many whole columns as the terminal has room for, in the order of their use; a cut figure says nothing."""
    longest = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    longest[0] = max(longest[0], min(20, width // 4))
    ends = list(accumulate(size + _GAP for size in longest))
    num_shown = max(1, sum(end - _GAP <= width for end in ends))
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP // 2))
    for number, head in enumerate(heads[:num_shown]):
        table.add_column(head, justify="right" if number else "left", min_width=longest[number] if num_shown > 1 else 0)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row[:num_shown]))
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _bar(held: float, cached: float, width: int = 20) -> Text:
    """Held, cached and free pages."""
    num_held, num_cached = round(held * width), round(cached * width)
    free = max(0, width - num_held - num_cached)
    return Text.assemble(("█" * num_held, "yellow"), ("▒" * num_cached, "cyan"), ("·" * free, "dim"))
