"""`headrace status`: what runs, where it answers, and whether it is ready."""

import argparse
import asyncio
import json
from typing import Any

from headrace.v1 import fleet_pb2 as fleet
from headrace.v1 import worker_pb2 as worker
from headrace_cli.console import table
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.readiness import inspect
from headrace_cli.platform.state_dir import SERVICES, CommandError, StateDir
from headrace_kit.errors import HeadraceError

HELP = "what runs, where it answers, whether it is ready"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    state = StateDir.resolve(options.state_dir)
    if state.supervisor_pid() is None:
        raise CommandError(f"nothing is running in {state.root} (start it with: headrace up)")
    report = asyncio.run(collect(state))
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0 if all(service["ready"] for service in report["services"]) else 1


async def collect(state: StateDir) -> dict[str, Any]:
    """The object of `headrace status --json`."""
    seen = await inspect(state)
    gateway = state.announced("gateway") or {}
    rows = [_service_row(name, state.announced(name) or {}, seen.services[name]) for name in SERVICES]
    rows += [_replica_row(replica) for replica in seen.replicas]
    return {
        "gateway": {"http": gateway.get("public_http"), "grpc": gateway.get("public_grpc")},
        "api_key": _secret(state, "api_key"),
        "admin_key": _secret(state, "admin_key"),
        "snapshot_version": await _version(state),
        "services": rows,
    }


def _service_row(name: str, announced: dict[str, Any], ready: bool) -> dict[str, Any]:
    return {
        "name": name,
        "grpc": announced.get("grpc"),
        "http": announced.get("http"),
        "pid": announced.get("pid"),
        "ready": ready,
    }


def _replica_row(replica: fleet.Replica) -> dict[str, Any]:
    ready = replica.state == worker.REPLICA_STATE_READY
    state = worker.ReplicaState.Name(replica.state).removeprefix("REPLICA_STATE_").lower()
    return {
        "name": f"worker/{replica.ref.id}",
        "grpc": replica.ref.endpoint,
        "http": replica.http,
        "pid": replica.pid,
        "ready": ready,
        "model": replica.model,
        "pool": replica.pool,
        "state": state,
        "progress": replica.progress,
    }


def _secret(state: StateDir, name: str) -> str | None:
    path = getattr(state, name)
    return state.read_secret(path) if path.exists() else None


async def _version(state: StateDir) -> int | None:
    try:
        async with Admin(state) as admin:
            return await admin.snapshot_version()
    except (HeadraceError, CommandError):
        return None


def _print(report: dict[str, Any]) -> None:
    gateway = report["gateway"]
    print(f"gateway    http://{gateway['http']}/v1    grpc {gateway['grpc']}    snapshot {report['snapshot_version']}")
    rows = [
        (
            row["name"],
            "ready" if row["ready"] else row.get("progress") or row.get("state") or "not ready",
            row["grpc"] or "-",
            row["http"] or "-",
            str(row["pid"] or "-"),
        )
        for row in report["services"]
    ]
    table(("service", "state", "grpc", "http", "pid"), rows)
