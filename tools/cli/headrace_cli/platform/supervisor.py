"""The process behind `headrace up`: starts Redis and the four services, and starts again whichever dies.

Not its business: workers. The control plane starts them, they outlive it, and it adopts them when it returns; only an
orderly stop of the whole platform ends them, after the control plane that would start them again.
"""

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import signal
from functools import partial
from pathlib import Path

from headrace_cli.platform import redis_server, workers
from headrace_cli.platform.commands import service_command
from headrace_cli.platform.process import ManagedProcess
from headrace_cli.platform.state_dir import SERVICES, StateDir, assign_addresses
from headrace_kit.files import write_atomically

_STOP_ORDER = ("gateway", "controlplane", "router", "policy", "redis")
_GRACE_S = 15.0


class Supervisor:
    """Runs one platform until it is told to stop, or until a process says that it can never start."""

    def __init__(self, state: StateDir, fleet: Path | None) -> None:
        tell = (self._give_up, self._note_death)
        self._state = state
        self._stopping = asyncio.Event()
        self._deaths: dict[str, int] = {}
        addresses = assign_addresses(state)
        self._processes = {
            name: ManagedProcess(name, partial(service_command, name, state, addresses, fleet), state.log(name), *tell)
            for name in SERVICES
        }
        self._processes["redis"] = ManagedProcess(
            "redis", partial(redis_server.command, state), state.log("redis"), *tell
        )

    async def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stopping.set)
        for old in (self._state.stop_reason, self._state.deaths):
            old.unlink(missing_ok=True)
        for process in self._processes.values():
            process.start()
        await self._stopping.wait()
        for name in _STOP_ORDER:
            await self._processes[name].stop(_GRACE_S)
            if name == "controlplane":
                await workers.stop_all(self._state, _GRACE_S)

    def _note_death(self, name: str, in_a_row: int) -> None:
        self._deaths[name] = in_a_row
        with contextlib.suppress(OSError):  # a full disk keeps nobody from being started again
            write_atomically(self._state.deaths, json.dumps(self._deaths).encode())

    def _give_up(self, sentence: str) -> None:
        self._stopping.set()
        self._state.stop_reason.write_text(sentence, "utf-8")


def main() -> None:
    """`python -m headrace_cli.platform.supervisor`: one per state directory, held by a lock."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--fleet", type=Path)
    options = parser.parse_args()
    state = StateDir(options.state_dir)
    state.prepare()
    with state.lock.open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another supervisor runs in {state.root}") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        asyncio.run(Supervisor(state, options.fleet).run())


if __name__ == "__main__":
    main()
