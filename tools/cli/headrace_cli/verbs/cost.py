"""`headrace cost`: what the devices cost, and what their time went into."""

import argparse
import asyncio
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from headrace.v1 import fleet_pb2 as pb
from headrace_cli.console import table
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import StateDir
from headrace_cli.verbs.moments import span_ms

HELP = "what the devices cost, and what their time went into"
_TIMEOUT_S = 60.0
_US_PER_HOUR = 3.6e9
_NAMES = ("pool", "model", "tenant", "slo_class")
_WHO = {"pool": "pool", "model": "model", "tenant": "tenant", "class": "slo_class"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tenant", default="", help="what one tenant took (default: everything, idle time included)")
    parser.add_argument("--from", dest="start", default="", metavar="TIME", help="ISO 8601, inclusive")
    parser.add_argument("--to", dest="end", default="", metavar="TIME", help="ISO 8601, exclusive (default: now)")
    parser.add_argument("--by", choices=tuple(_WHO), help="one line per part and pool, model, tenant or class")
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table")


def run(options: argparse.Namespace) -> int:
    start_ms, end_ms = span_ms(options.start, options.end)
    request = pb.CostRequest(from_ms=start_ms, to_ms=end_ms, tenant=options.tenant)
    report = asyncio.run(_ask(StateDir.resolve(options.state_dir), request))
    rows = _grouped(report.rows, _WHO[options.by]) if options.by else [_row(row) for row in report.rows]
    bill = {"device_us": report.bill_device_us, "cost": report.bill_cost}
    if options.format == "json":
        print(json.dumps({"bill": bill, "from_ms": report.from_ms, "to_ms": report.to_ms, "rows": rows}, indent=2))
    elif options.format == "csv":
        writer = csv.DictWriter(sys.stdout, list(rows[0]) if rows else list(_row(pb.CostRow())))
        writer.writeheader()
        writer.writerows(rows)
    else:
        _print(rows, report, options.tenant)
    return 0


async def _ask(state: StateDir, request: pb.CostRequest) -> pb.CostReport:
    async with Admin(state) as admin:
        return await admin.call(admin.stub.GetCost, request, _TIMEOUT_S)  # type: ignore[no-any-return]


def _row(row: pb.CostRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in (*_NAMES, "part", "device_us", "cost", "num_tokens")}


def _grouped(rows: Iterable[pb.CostRow], who: str) -> list[dict[str, Any]]:
    sums: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0])
    for row in rows:
        amount = sums[getattr(row, who), row.part]
        amount[0] += row.device_us
        amount[1] += row.cost
        amount[2] += row.num_tokens
    return [
        {who: key, "part": part, "device_us": device_us, "cost": cost, "num_tokens": num_tokens}
        for (key, part), (device_us, cost, num_tokens) in sorted(sums.items())
    ]


def _print(rows: list[dict[str, Any]], report: pb.CostReport, tenant: str) -> None:
    names = [name for name in _NAMES if rows and name in rows[0]]
    header = (*names, "part", "device hours", "share", "cost", "tokens", "cost / 1M tokens")
    whole = report.bill_device_us or 1
    table(header, [_cells(row, names, whole) for row in rows])
    cost = sum(row["cost"] for row in rows) if tenant else report.bill_cost
    hours = (sum(row["device_us"] for row in rows) if tenant else report.bill_device_us) / _US_PER_HOUR
    useful = sum(row["num_tokens"] for row in rows if row["part"] == "useful")
    per_million = f", {cost / useful * 1e6:.4f} per 1M useful tokens" if useful else ""
    print(f"\n{'share of the bill' if tenant else 'bill'}: {hours:.4f} device hours, {cost:.4f}{per_million}")


def _cells(row: dict[str, Any], names: list[str], whole_us: int) -> tuple[str, ...]:
    per_million = f"{row['cost'] / row['num_tokens'] * 1e6:.4f}" if row["num_tokens"] else ""
    return (
        *(row[name] or "-" for name in names),
        row["part"],
        f"{row['device_us'] / _US_PER_HOUR:.4f}",
        f"{100 * row['device_us'] / whole_us:.1f} %",
        f"{row['cost']:.4f}",
        str(row["num_tokens"]),
        per_million,
    )
