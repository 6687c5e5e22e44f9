"""`headrace route explain DECISION_ID`: why a request went where it went; the control plane asks the routers."""

import argparse
import asyncio
import time
from typing import Any

from google.protobuf import json_format

from headrace.v1 import routing_pb2 as pb
from headrace_cli.console import table
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import StateDir

HELP = "why a request went where it went: explain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    explain = actions.add_parser("explain", help="every replica that was looked at, and why one was picked")
    explain.add_argument("decision_id", metavar="DECISION_ID", help="from the trace or the log of a response")
    explain.add_argument("--json", action="store_true", help="the whole record as JSON")


def run(options: argparse.Namespace) -> int:
    return asyncio.run(_explain(StateDir.resolve(options.state_dir), options))


async def _explain(state: StateDir, options: argparse.Namespace) -> int:
    async with Admin(state) as admin:
        told = await admin.call(admin.stub.ExplainRoute, pb.ExplainRequest(decision_id=options.decision_id))
    if options.json:
        print(
            json_format.MessageToJson(told, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        )
        return 0
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(told.decided_at_ms / 1000))
    asker = f" by gateway {told.gateway_id}" if told.gateway_id else ""
    print(f"{told.response_id}, attempt {told.attempt}{asker}, {at} UTC\n{told.why}\n")
    names = sorted({name for each in told.candidates for name in each.terms})
    rows = [_row(each, names) for each in sorted(told.candidates, key=_rank)]
    table(("", "replica", "score", *names, "not picked because"), rows)
    return 0


def _rank(candidate: Any) -> tuple[bool, bool, float]:
    """Picked first, then by score; who was not scored comes last."""
    return not candidate.picked, not candidate.terms, candidate.score


def _row(candidate: Any, names: list[str]) -> tuple[str, ...]:
    scored = bool(candidate.terms)
    numbers = [f"{candidate.score:.3f}", *(f"{candidate.terms[name]:.3f}" for name in names)] if scored else []
    blank = [""] * (len(names) + 1 - len(numbers))
    return ("*" if candidate.picked else "", candidate.replica.id, *numbers, *blank, candidate.filtered)
