"""`headrace trace RESPONSE_ID`: where the time of one response went, and which phase broke its budget."""

import argparse
import asyncio
import sys

from google.protobuf import json_format
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from headrace.v1 import fleet_pb2 as pb
from headrace_cli import waterfall
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import StateDir
from headrace_kit.errors import HeadraceError

HELP = "where the time of a response went, and which phase broke its budget"
# Services gather spans for a moment before they send them.
_NUM_TRIES, _WAIT_S = 8, 0.25
_BAR_CELLS = 40
_NUMBERS = (Column("start ms", justify="right"), Column("took ms", justify="right"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("response_id", metavar="RESPONSE_ID", help="x-headrace-response-id, or from the log")
    parser.add_argument("--json", action="store_true", help="every span with all its attributes as JSON")


def run(options: argparse.Namespace) -> int:
    trace = asyncio.run(_ask(StateDir.resolve(options.state_dir), options.response_id))
    if options.json:
        print(json_format.MessageToJson(trace, preserving_proto_field_name=True))
        return 0
    _draw(trace)
    return 0


async def _ask(state: StateDir, response_id: str) -> pb.Trace:
    """Waits a little for a response that has just ended: its own span comes last."""
    async with Admin(state) as admin:
        for left in reversed(range(_NUM_TRIES)):
            try:
                found: pb.Trace = await admin.call(admin.stub.GetTrace, pb.GetTraceRequest(response_id=response_id))
            except HeadraceError as error:
                if error.reason != "invalid_argument" or not left:
                    raise
            else:
                await asyncio.sleep(_WAIT_S)  # the other services' spans of it
                again: pb.Trace = await admin.call(admin.stub.GetTrace, pb.GetTraceRequest(response_id=response_id))
                if len(again.spans) == len(found.spans) or not left:
                    return again
            await asyncio.sleep(_WAIT_S)
    raise AssertionError("the last try returns or raises")


def _draw(trace: pb.Trace) -> None:
    console = Console(width=None if sys.stdout.isatty() else 180)
    view = Table("", "service", *_NUMBERS, "", "", box=None, pad_edge=False)
    for line in waterfall.lines(trace, _BAR_CELLS):
        style = "red" if line.error else ""
        numbers = (f"{line.start_ms:,.1f}", f"{line.took_ms:,.1f}")
        notes = f"{line.error}  {line.notes}" if line.error else line.notes
        bar = Text(line.bar(_BAR_CELLS), style=style or "cyan")
        view.add_row(Text(line.name, style=style), Text(line.service), *numbers, bar, Text(notes, style=style))
    console.print(Text(f"trace {trace.trace_id}"))
    console.print(view)
    console.print(Text(waterfall.verdict(trace)))
    for retried in waterfall.root_of(trace).links:
        console.print(Text(f"it retries {retried}: headrace trace {retried}"))
