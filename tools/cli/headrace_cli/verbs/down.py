"""`headrace down`: stop the platform on this host; streams are drained first."""

import argparse
import os
import signal
import sys
import time

from headrace_cli.platform.state_dir import CommandError, StateDir

HELP = "stop the platform; running streams are drained first"
_LIMIT_S = 90.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


def run(options: argparse.Namespace) -> int:
    return stop(StateDir.resolve(options.state_dir))


def stop(state: StateDir) -> int:
    """Ends the supervisor in order and waits for it."""
    pid = state.supervisor_pid()
    if pid is None:
        print(f"nothing is running in {state.root}", file=sys.stderr)
        return 0
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _LIMIT_S
    while state.supervisor_pid() == pid:
        if time.monotonic() > deadline:
            raise CommandError(f"the supervisor (pid {pid}) is still stopping after {_LIMIT_S:.0f} s")
        time.sleep(0.1)
    print("stopped", file=sys.stderr)
    return 0
