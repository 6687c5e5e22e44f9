"""`headrace audit`: whether the books of the fleet balance."""

import argparse
import asyncio
import json

from google.protobuf.json_format import MessageToDict

from headrace.v1 import fleet_pb2 as pb
from headrace_cli.console import table
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import StateDir

HELP = "whether every token, page, reservation and response is accounted for"
_TIMEOUT_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("table", "json"), default="table")


def run(options: argparse.Namespace) -> int:
    """1 if anything does not balance, or books are missing."""
    report = asyncio.run(_ask(StateDir.resolve(options.state_dir)))
    if options.format == "json":
        shown = MessageToDict(report, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        print(json.dumps(shown, indent=2))
    else:
        rows = [
            ("ok" if row.balanced else "NO", row.component, row.equation, f"{row.left:g}", f"{row.right:g}")
            for row in sorted(report.rows, key=lambda row: (row.balanced, row.component))
        ]
        table(("", "who", "equation", "left", "right"), rows)
        num_broken = sum(not row.balanced for row in report.rows)
        print(f"\n{len(report.rows)} equations, " + (f"{num_broken} do not balance" if num_broken else "all balance"))
        if report.silent:
            print(f"INCOMPLETE: no books from {', '.join(report.silent)}")
    return 0 if report.balanced else 1


async def _ask(state: StateDir) -> pb.AuditReport:
    async with Admin(state) as admin:
        return await admin.call(admin.stub.Audit, pb.AuditRequest(), _TIMEOUT_S)  # type: ignore[no-any-return]
