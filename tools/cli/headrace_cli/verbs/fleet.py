"""`headrace fleet apply|diff|history|rollback|show|scale`: what should exist, as versions."""

import argparse
import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from headrace.v1 import fleet_pb2 as pb
from headrace_cli.console import table
from headrace_cli.natural import natural
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import CommandError, StateDir
from headrace_cli.scale_lines import decision_row, measured_line, scale_line
from headrace_cli.verbs.apply import apply_file, refusal

HELP = "what should exist: apply, diff, history, rollback, show, scale"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    apply = actions.add_parser("apply", help="check a fleet file and make it the newest version")
    apply.add_argument("file", type=Path)
    apply.add_argument("--comment", default="", help="for the history")
    diff = actions.add_parser("diff", help="what an apply would change")
    diff.add_argument("file", type=Path)
    history = actions.add_parser("history", help="versions, newest first")
    history.add_argument("-n", type=natural, default=20, help="most lines (default 20)")
    rollback = actions.add_parser("rollback", help="make the file of an older version the newest")
    rollback.add_argument("version", type=natural)
    show = actions.add_parser("show", help="print the fleet file")
    show.add_argument("version", type=natural, nargs="?", default=0)
    scale = actions.add_parser("scale", help="why pools that follow their load have so many replicas")
    scale.add_argument("pool", nargs="?", default="", help="one pool (default: all)")
    scale.add_argument("-n", type=natural, default=20, help="most decisions of a pool (default 20)")


def run(options: argparse.Namespace) -> int:
    return asyncio.run(_ACTIONS[options.action](StateDir.resolve(options.state_dir), options))


def read_file(path: Path) -> str:
    """The text of a fleet file."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {path}: {error}") from None


async def _apply(state: StateDir, options: argparse.Namespace) -> int:
    answer = await apply_file(state, options.file, read_file(options.file), options.comment)
    print(f"version {answer.version}" if answer.changed else f"nothing changed; version {answer.version}")
    return 0


async def _diff(state: StateDir, options: argparse.Namespace) -> int:
    """Exit code 1 when there is a difference, as diff does."""
    fleet_yaml = read_file(options.file)
    async with Admin(state) as admin:
        answer = await admin.call(admin.stub.Diff, pb.DiffRequest(fleet_yaml=fleet_yaml))
    if answer.problems:
        raise refusal(options.file, answer.problems)
    print("\n".join(answer.changes) or "no difference")
    return 1 if answer.changes else 0


async def _history(state: StateDir, options: argparse.Namespace) -> int:
    async with Admin(state) as admin:
        answer = await admin.call(admin.stub.History, pb.HistoryRequest(limit=options.n))
    rows = [
        (str(one.version), _time(one.created_at_s), one.kind, one.hash.hex()[:12], one.comment)
        for one in answer.entries
    ]
    table(("version", "time (UTC)", "kind", "hash", "comment"), rows)
    return 0


async def _rollback(state: StateDir, options: argparse.Namespace) -> int:
    async with Admin(state) as admin:
        answer = await admin.call(admin.stub.Rollback, pb.RollbackRequest(version=options.version))
    if answer.problems:
        raise refusal(f"version {options.version}", answer.problems)
    print(f"version {answer.version} has the file of version {options.version}")
    return 0


async def _show(state: StateDir, options: argparse.Namespace) -> int:
    async with Admin(state) as admin:
        answer = await admin.call(admin.stub.Show, pb.ShowRequest(version=options.version))
    print(answer.fleet_yaml.rstrip("\n"))
    for canary in answer.canaries:
        print(canary_line(canary))
    for scale in answer.scales:
        print(scale_line(scale))
    return 0


async def _scale(state: StateDir, options: argparse.Namespace) -> int:
    async with Admin(state) as admin:
        answer = await admin.call(admin.stub.Show, pb.ShowRequest())
    found = [scale for scale in answer.scales if options.pool in ("", scale.pool)]
    if options.pool and not found:
        raise CommandError(f"{options.pool} is no pool whose number of replicas follows its load (max above min)")
    if not found:
        print("no pool follows its load: that takes a max above its min")
        return 0
    for scale in found:
        print(scale_line(scale).removeprefix("# scale "))
        print(measured_line(scale))
    rows = [decision_row(scale.pool, one) for scale in found for one in scale.decisions[-options.n :]]
    table(("pool", "time (UTC)", "replicas", "why", "detail"), rows)
    return 0


def canary_line(canary: pb.CanaryStatus) -> str:
    """How a revision on trial stands, as a comment below the file."""
    counts = [f"{each.num_failed} of {each.num_ended} failed {where}" for each, where in _sides(canary)]
    why = f" ({canary.reason})" if canary.reason else ""
    line = f"# canary {canary.model} {canary.revision}: {canary.state}{why}, on trial since version {canary.trial}"
    return ", ".join([line, *counts])


def _sides(canary: pb.CanaryStatus) -> list[tuple[pb.RevisionOutcomes, str]]:
    return [(each, "there" if each.revision == canary.revision else "beside it") for each in canary.outcomes]


def _time(unix_s: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(unix_s))


_ACTIONS: dict[str, Callable[[StateDir, argparse.Namespace], Coroutine[Any, Any, int]]] = {
    "apply": _apply,
    "diff": _diff,
    "history": _history,
    "rollback": _rollback,
    "scale": _scale,
    "show": _show,
}
