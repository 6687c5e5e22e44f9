"""`headrace quota show|set`: what a tenant may spend, and what is used of it."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import yaml

from headrace.v1 import fleet_pb2, policy_pb2
from headrace_cli.console import table
from headrace_cli.limit_edit import Limit, changed_content, changed_text
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import CommandError, StateDir
from headrace_cli.verbs.apply import refusal

HELP = "what a tenant may spend: show, set"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="limits and what is used of them now")
    show.add_argument("tenant")
    change = actions.add_parser("set", help="set or remove one limit of a tenant, as a new version of the fleet file")
    change.add_argument("tenant")
    change.add_argument("limit", help="rpm, tpm, input_tpm, output_tpm, concurrency, tokens_per_day or spend_per_day")
    change.add_argument("capacity", help="units that fit, or none")
    change.add_argument("--scope", default="tenant", choices=("tenant", "project", "key", "model"))
    change.add_argument("--subject", default="", help="project, key id or model; empty: each one of its own")


def run(options: argparse.Namespace) -> int:
    return asyncio.run(_ACTIONS[options.action](StateDir.resolve(options.state_dir), options))


async def _show(state: StateDir, options: argparse.Namespace) -> int:
    async with Admin(state) as admin:
        answer = await admin.call(admin.stub.GetTenantQuota, policy_pb2.QuotaQuery(tenant=options.tenant))
    rows = [(level.limit, level.scope, f"{level.level:g}", f"{level.capacity:g}") for level in answer.levels]
    if not rows and answer.num_answered == answer.num_asked:
        print(f"{options.tenant} has no limits")
        return 0
    table(("limit", "scope", "used", "capacity"), rows)
    if answer.num_answered < answer.num_asked:
        print(f"\n{answer.num_answered} of {answer.num_asked} policies answered; what is used is in Redis, one for all")
    return 0


async def _set(state: StateDir, options: argparse.Namespace) -> int:
    """What was used stays used: a limit is a level and a capacity."""
    capacity = None if options.capacity == "none" else _number(options.capacity)
    limit = Limit(options.tenant, options.limit, options.scope, options.subject, capacity)
    async with Admin(state) as admin:
        text = await admin.fleet_yaml()
        changed, is_kept = _changed(text, limit)
        comment = f"quota set {options.tenant} {options.limit} {options.capacity}"
        answer = await admin.call(admin.stub.Apply, fleet_pb2.ApplyRequest(fleet_yaml=changed, comment=comment))
    if answer.problems:
        raise refusal("the changed fleet file", answer.problems)
    if not is_kept:
        print("the fleet file could not be changed in place: this version of it is without comments", file=sys.stderr)
    print(f"version {answer.version}")
    return 0


def _changed(text: str, limit: Limit) -> tuple[str, bool]:
    """The fleet file with the limit, and whether it is otherwise as it was."""
    content = yaml.safe_load(text)
    tenants = content.get("tenants") or {}
    if limit.tenant not in tenants:
        raise CommandError(f"the fleet file has no tenant {limit.tenant!r}; it has: {', '.join(tenants)}")
    edited = changed_text(text, limit)
    if edited is not None:
        return edited, True
    return yaml.safe_dump(changed_content(content, limit), sort_keys=False), False


def _number(text: str) -> float | int:
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise CommandError(f"capacity: {text!r} is no number; `none` removes the limit") from None


_ACTIONS: dict[str, Callable[[StateDir, argparse.Namespace], Coroutine[Any, Any, int]]] = {"show": _show, "set": _set}
