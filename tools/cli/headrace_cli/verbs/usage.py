"""`headrace usage`: what was settled, one row per settlement or correction."""

import argparse
import asyncio
import csv
import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from headrace.v1 import policy_pb2 as pb
from headrace.v1 import response_pb2
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import StateDir
from headrace_cli.verbs.moments import span_ms

HELP = "what was settled, as CSV or JSON"
_TIMEOUT_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tenant", default="", help="one tenant (default: all)")
    parser.add_argument("--from", dest="start", default="", metavar="TIME", help="ISO 8601, inclusive")
    parser.add_argument("--to", dest="end", default="", metavar="TIME", help="ISO 8601, exclusive (default: now)")
    parser.add_argument("--format", choices=("csv", "json"), default="csv")


def run(options: argparse.Namespace) -> int:
    start_ms, end_ms = span_ms(options.start, options.end)
    query = pb.UsageQuery(tenant=options.tenant, from_ms=start_ms, to_ms=end_ms)
    rows = asyncio.run(_rows(StateDir.resolve(options.state_dir), query))
    if options.format == "json":
        print(json.dumps(rows, indent=2))
    else:
        _write_csv(rows)
    return 0


async def _rows(state: StateDir, query: pb.UsageQuery) -> list[dict[str, Any]]:
    async with Admin(state) as admin:
        rows = admin.stream(admin.stub.QueryUsage, query, _TIMEOUT_S)
        return [_row(row) async for row in rows if not row.settlement.attempt_of]  # one row for each response


def _row(row: pb.UsageRow) -> dict[str, Any]:
    settled = row.settlement
    kind = response_pb2.TerminalKind.Name(settled.kind).removeprefix("TERMINAL_KIND_").lower()
    return {
        "settled_at": datetime.fromtimestamp(row.settled_at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "response_id": settled.reservation.response_id,
        "tenant": settled.reservation.identity.tenant,
        "project": settled.reservation.identity.project,
        "key": settled.reservation.identity.key_id,
        "model": settled.reservation.model,
        "kind": kind if settled.created else "refused",
        "reason": settled.reason,
        "prompt_tokens": settled.num_prompt_tokens,
        "cached_tokens": settled.num_cached_tokens,
        "output_tokens": settled.num_output_tokens,
        "withheld_tokens": settled.num_withheld_tokens,
        "screening": settled.screening_verdict,
        "cost": row.cost,
        "correction": row.correction,
    }


def _write_csv(rows: Iterable[dict[str, Any]]) -> None:
    names = list(_row(pb.UsageRow()))
    writer = csv.DictWriter(sys.stdout, names)
    writer.writeheader()
    writer.writerows(rows)
