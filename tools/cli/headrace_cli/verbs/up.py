"""`headrace up`: start the platform on this host and wait until it answers."""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from headrace_cli.console import Progress
from headrace_cli.platform.admin import Admin, ControlPlaneAway
from headrace_cli.platform.hopeless import Hopeless, where
from headrace_cli.platform.readiness import Readiness, inspect
from headrace_cli.platform.state_dir import CommandError, StateDir, assign_addresses
from headrace_cli.verbs import down
from headrace_cli.verbs.apply import apply_file

HELP = "start everything on this host and wait until it answers"
_POLL_S = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fleet", type=Path, metavar="FILE", help="fleet file to run (default: the last one applied)")
    parser.add_argument("--detach", action="store_true", help="leave it running and return once it is ready")
    parser.add_argument("--timeout", type=float, default=900.0, metavar="S", help="seconds to wait (default 900)")


def run(options: argparse.Namespace) -> int:
    state = StateDir.resolve(options.state_dir)
    fleet = _check_fleet(options.fleet)
    started_here = state.supervisor_pid() is None
    if started_here:
        _start_supervisor(state, fleet)
    try:
        asyncio.run(_wait_until_ready(state, fleet, options.timeout))
    except KeyboardInterrupt:
        print("stopping", file=sys.stderr)
        return down.stop(state) or 130
    except CommandError:
        if started_here and state.supervisor_pid() is not None:
            down.stop(state)
        raise
    _print_next_steps(state)
    if options.detach:
        return 0
    return _stay(state)


def _check_fleet(path: Path | None) -> Path | None:
    if path is not None and not path.is_file():
        raise CommandError(f"--fleet: there is no file {path}")
    return path.absolute() if path is not None else None


def _start_supervisor(state: StateDir, fleet: Path | None) -> None:
    state.prepare()
    assign_addresses(state)  # what is wrong with them is better said here than in the supervisor's log
    command = [sys.executable, "-m", "headrace_cli.platform.supervisor", f"--state-dir={state.root}"]
    if fleet is not None:
        command.append(f"--fleet={fleet}")
    with state.log("supervisor").open("ab") as output:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    deadline = time.monotonic() + 10.0
    while state.supervisor_pid() is None:
        if time.monotonic() > deadline:
            raise CommandError(f"the supervisor did not start; see {state.log('supervisor')}")
        time.sleep(0.05)


async def _wait_until_ready(state: StateDir, fleet: Path | None, timeout_s: float) -> None:
    started = time.monotonic()
    unapplied, hopeless = fleet, Hopeless(state)
    with Progress() as progress:
        while True:
            seen = await inspect(state)
            if unapplied is not None and seen.services["controlplane"] and await _applied(state, unapplied):
                unapplied = None
                continue
            progress.show(seen, time.monotonic() - started)
            if not seen.missing:
                return
            _raise_if_ended(state, seen, time.monotonic() - started, timeout_s)
            if (reason := await asyncio.to_thread(hopeless.look, seen.replicas)) is not None:
                raise CommandError(reason)
            await asyncio.sleep(_POLL_S)


async def _applied(state: StateDir, fleet: Path) -> bool:
    """Whether it could be applied; why a control plane that is stopping did not answer is told elsewhere."""
    text = await asyncio.to_thread(fleet.read_text, "utf-8")
    try:
        await apply_file(state, fleet, text, "headrace up")
    except ControlPlaneAway:
        return False
    return True


def _raise_if_ended(state: StateDir, seen: Readiness, waited_s: float, timeout_s: float) -> None:
    if state.supervisor_pid() is None:
        reason = state.stop_reason.read_text("utf-8") if state.stop_reason.exists() else "the supervisor ended"
        raise CommandError(f"{reason} (logs: {state.root / 'logs'})")
    if waited_s > timeout_s:
        raise CommandError(f"not ready after {timeout_s:.0f} s: {'; '.join(seen.missing)} ({where(state)})")


def _print_next_steps(state: StateDir) -> None:
    gateway = assign_addresses(state)["gateway"]
    flag = "" if state == StateDir.resolve(None) else f" --state-dir {state.root}"
    print(f"""\
Headrace is ready.
  OpenAI HTTP   http://{gateway["public_http"]}/v1      gRPC  {gateway["public_grpc"]}
  API key       {state.api_key}
Next:
  headrace chat{flag} {example(asyncio.run(_fleet_yaml(state)))}
  headrace status{flag}
  curl http://{gateway["public_http"]}/v1/models -H "Authorization: Bearer $(cat {state.api_key})"
  headrace down{flag}""")


async def _fleet_yaml(state: StateDir) -> str:
    async with Admin(state) as admin:
        return await admin.fleet_yaml()


def example(fleet_yaml: str) -> str:
    """Words for `headrace chat` that the first model has an answer to: the scripted engine knows no capital."""
    models: dict[str, Any] = (yaml.safe_load(fleet_yaml) or {}).get("models") or {}
    first: tuple[str, dict[str, Any]] = next(iter(models.items()), ("", dict[str, Any]()))
    name, model = first
    flag = f"--model {name} " if len(models) > 1 else ""
    if model.get("source") == "scripted":
        return f"""{flag}'["Hel", "lo", "!stall(1)", " there"]'"""
    return f'{flag}"What is the capital of France?"'


def _stay(state: StateDir) -> int:
    """In the foreground: until Ctrl-C, or until the supervisor gives up."""
    print("Ctrl-C stops it.")
    with contextlib.suppress(KeyboardInterrupt):
        while state.supervisor_pid() is not None:
            time.sleep(0.5)
        return 1
    return down.stop(state)
