"""`headrace keys create|list|revoke`: API keys. A key is shown once, when it is made."""

import argparse
import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.v1 import fleet_pb2 as pb
from headrace_cli.console import table
from headrace_cli.natural import natural
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import StateDir

HELP = "API keys: create, list, revoke"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a key; it is shown this once")
    create.add_argument("tenant")
    create.add_argument("--project", default="")
    create.add_argument("--model", action="append", default=[], metavar="NAME", help="may name this model; repeatable")
    create.add_argument("--slo-class", default="", metavar="NAME")
    create.add_argument("--expires-in", type=natural, default=0, metavar="S", help="seconds; 0 = never")
    show = actions.add_parser("list", help="keys without their secrets")
    show.add_argument("tenant", nargs="?", default="")
    revoke = actions.add_parser("revoke", help="end a key; it is refused within two seconds")
    revoke.add_argument("key_id")


def run(options: argparse.Namespace) -> int:
    return asyncio.run(_ACTIONS[options.action](StateDir.resolve(options.state_dir), options))


async def _create(state: StateDir, options: argparse.Namespace) -> int:
    request = pb.CreateKeyRequest(
        tenant=options.tenant,
        project=options.project,
        models=options.model,
        slo_class=options.slo_class,
        expires_in_s=options.expires_in,
    )
    async with Admin(state) as admin:
        answer = await admin.call(admin.stub.CreateKey, request)
    print(answer.key)
    return 0


async def _list(state: StateDir, options: argparse.Namespace) -> int:
    async with Admin(state) as admin:
        answer = await admin.call(admin.stub.ListKeys, pb.ListKeysRequest(tenant=options.tenant))
    rows = [(key.key_id, key.tenant, key.project, ",".join(key.models) or "all", _state(key)) for key in answer.keys]
    table(("key", "tenant", "project", "models", "state"), rows)
    return 0


async def _revoke(state: StateDir, options: argparse.Namespace) -> int:
    async with Admin(state) as admin:
        answer = await admin.call(admin.stub.RevokeKey, pb.RevokeKeyRequest(key_id=options.key_id))
    print(f"revoked with version {answer.version}")
    return 0


def _state(key: pb.Key) -> str:
    if key.revoked:
        return "revoked"
    if not key.expires_at_s:
        return "valid"
    expired = key.expires_at_s <= time.time()
    day = time.strftime("%Y-%m-%d %H:%M", time.gmtime(key.expires_at_s))
    return f"expired {day}" if expired else f"valid until {day} UTC"


_ACTIONS: dict[str, Callable[[StateDir, argparse.Namespace], Coroutine[Any, Any, int]]] = {
    "create": _create,
    "list": _list,
    "revoke": _revoke,
}
