"""`headrace logs SERVICE`: what a service said."""

import argparse
import contextlib
import sys
import time
from pathlib import Path

from headrace_cli.natural import natural
from headrace_cli.platform.state_dir import SERVICES, CommandError, StateDir
from headrace_cli.platform.workers import log_files

HELP = "what a service said"
_NAMES = ", ".join((*SERVICES, "redis", "supervisor", "worker or worker/ID"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("service", metavar="SERVICE", help=_NAMES)
    parser.add_argument("-n", "--lines", type=natural, default=100, metavar="N", help="last lines (default 100)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as it grows")


def run(options: argparse.Namespace) -> int:
    state = StateDir.resolve(options.state_dir)
    files = _files(state, options.service)
    for path in files:
        if len(files) > 1:
            print(f"==> {path.name} <==", file=sys.stderr)
        lines = path.read_text("utf-8", "replace").splitlines()
        print("\n".join(lines[max(0, len(lines) - options.lines) :]))
    if options.follow:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(files)
    return 0


def _files(state: StateDir, service: str) -> list[Path]:
    if service == "worker" or service.startswith("worker/"):
        files = log_files(state, service.partition("/")[2])
    elif service in (*SERVICES, "redis", "supervisor"):
        files = [path for path in (state.log(service),) if path.exists()]
    else:
        raise CommandError(f"there is no service {service!r}: {_NAMES}")
    if not files:
        raise CommandError(f"{service} has no log in {state.root}")
    return files


def _follow(files: list[Path]) -> None:
    offsets = {path: path.stat().st_size for path in files}
    while True:
        for path in files:
            offsets[path] = _print_from(path, offsets[path])
        time.sleep(0.2)


def _print_from(path: Path, offset: int) -> int:
    """Prints what came after ``offset`` and returns the new end; a log that shrank was rotated."""
    size = path.stat().st_size
    start = offset if size >= offset else 0
    if size > start:
        with path.open("rb") as file:
            file.seek(start)
            sys.stdout.write(file.read(size - start).decode("utf-8", "replace"))
        sys.stdout.flush()
    return size
