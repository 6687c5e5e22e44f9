"""`headrace restart SERVICE`: stop one service in order; whoever supervises it starts it again."""

import argparse
import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator

from headrace.v1 import worker_pb2 as worker
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.readiness import service_ready
from headrace_cli.platform.state_dir import SERVICES, CommandError, StateDir

HELP = "restart one service: controlplane, policy, router, gateway or worker[/ID]"
_LIMIT_S = 120.0
_LEAVING = (worker.REPLICA_STATE_DRAINING, worker.REPLICA_STATE_GONE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("service", metavar="SERVICE", help=", ".join((*SERVICES, "worker", "worker/ID")))


def run(options: argparse.Namespace) -> int:
    state = StateDir.resolve(options.state_dir)
    if state.supervisor_pid() is None:
        raise CommandError(f"nothing is running in {state.root} (start it with: headrace up)")
    name: str = options.service
    if name in SERVICES:
        asyncio.run(_restart_service(state, name))
    elif name == "worker" or name.startswith("worker/"):
        with alone(state):
            asyncio.run(_restart_workers(state, name.partition("/")[2]))
    else:
        raise CommandError(f"there is no service {name!r}: {', '.join(SERVICES)}, worker or worker/ID")
    print(f"{name} is ready again")
    return 0


@contextlib.contextmanager
def alone(state: StateDir) -> Iterator[None]:
    """Between a worker's signal and its word that it drains, another restart would signal it again."""
    with (state.root / "restart.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError("another restart of workers is running; wait until it is done") from None
        yield


async def _restart_service(state: StateDir, service: str) -> None:
    before = state.announced(service)
    if before is None:
        raise CommandError(f"{service} is not running")
    os.kill(before["pid"], signal.SIGTERM)
    deadline = time.monotonic() + _LIMIT_S
    while True:
        now = state.announced(service)
        if now is not None and now["instance"] != before["instance"] and await service_ready(state, service):
            return
        if time.monotonic() > deadline:
            raise CommandError(f"{service} is not ready after {_LIMIT_S:.0f} s; see: headrace logs {service}")
        await asyncio.sleep(0.1)


async def _restart_workers(state: StateDir, replica_id: str) -> None:
    async with Admin(state) as admin:
        before = await admin.replicas()
        # A second signal would end a worker that drains already, and its streams with it.
        staying = [one for one in before if one.pid and one.state not in _LEAVING]
        chosen = [one for one in staying if replica_id in ("", one.ref.id)]
        if not chosen:
            raise CommandError(f"there is no worker {replica_id}".strip())
        for replica in chosen:
            os.kill(replica.pid, signal.SIGTERM)
        old = {replica.ref.epoch for replica in before}
        deadline = time.monotonic() + _LIMIT_S
        while True:
            fresh = [
                one
                for one in await admin.replicas()
                if one.ref.epoch not in old and one.state == worker.REPLICA_STATE_READY
            ]
            if len(fresh) >= len(chosen):
                return
            if time.monotonic() > deadline:
                raise CommandError(f"the worker is not ready after {_LIMIT_S:.0f} s; see: headrace logs worker")
            await asyncio.sleep(0.2)
