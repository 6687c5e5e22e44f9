"""The workers that the control plane's process launcher started: their logs, and their end when the platform stops."""

import asyncio
import contextlib
from pathlib import Path

import psutil

from headrace_cli.platform.state_dir import StateDir, read_json


def records(state: StateDir) -> list[Path]:
    """One record per worker slot, as the launcher keeps them."""
    return sorted((state.of("controlplane") / "workers").glob("*.json"))


def log_files(state: StateDir, replica_id: str) -> list[Path]:
    """Logs of one replica, or of all."""
    return sorted((state.of("controlplane") / "workers").glob(f"{replica_id or '*'}.log"))


def live_processes(state: StateDir) -> list[psutil.Process]:
    """Processes of the records that still run; a pid that went to another process since does not count."""
    alive = []
    for path in records(state):
        record = read_json(path)
        if record is None:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(record["pid"])
            if abs(process.create_time() - record["started_at"]) < 1.0:
                alive.append(process)
    return alive


async def stop_all(state: StateDir, grace_s: float) -> None:
    """SIGTERM to every worker, SIGKILL to those that are left after ``grace_s`` seconds."""
    processes = live_processes(state)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = await asyncio.to_thread(psutil.wait_procs, processes, timeout=grace_s)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
